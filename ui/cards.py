"""Rows of key figures, each with a reference value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from sequoia_core.models.other_load import load_sentence
from ui.markdown import escaped
from ui.phrases import ONE_PASS_DIGITS, times


@dataclass(frozen=True, slots=True)
class Card:
    """A key figure and a reference value; about 24 characters fit in a quarter of the page."""

    label: str
    value: str
    against: str
    help: str | None = None


def cards(*row: Card) -> None:
    """Draw a row of key figures."""
    for column, card in zip(st.columns(len(row)), row, strict=True):
        column.metric(
            card.label,
            card.value,
            card.against,
            border=True,
            height="stretch",
            help=card.help,
            delta_color="off",
            delta_arrow="off",
        )


def draw_error(error: ValueError, then: str = "") -> None:
    """Draw a user's mistake and what happens `then`."""
    st.error(f"{escaped(str(error))}. {then}", icon=":material/error:")


def draw_slower(speedup: float | None, remedy: str) -> None:
    """Say in red that speculation was slower than plain decoding, if it was, and what to do about it."""
    if speedup is not None and 0 < speedup < 1:
        slower = f"{times(1 / speedup, ONE_PASS_DIGITS)} slower than without speculation"
        st.markdown(f":red[:material/trending_down: **{slower}.** {remedy}]", width="content")


def draw_load_warning(*measured: Mapping[str, Any]) -> None:
    """Draw a warning if other processes disturbed one of these runs or profiles (their `meta`)."""
    if (sentence := load_sentence(*(each.get("load") for each in measured))) is not None:
        st.warning(sentence, icon=":material/speed:")


def number(value: float | None, form: str = "{:.2f}") -> str:
    """Format a number; None becomes a dash and infinity ∞."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else form.format(value)
