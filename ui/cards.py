"""Rows of figures, each number beside what it compares with."""

import math
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


@dataclass(frozen=True, slots=True)
class Card:
    """One number with what it compares with, which fits a quarter of the page: about 24 characters.

    If `signed`, `against` begins with + or −, shown as better or worse.
    """

    label: str
    value: str
    against: str
    help: str | None = None
    signed: bool = False


def cards(*row: Card) -> list[DeltaGenerator]:
    """Draw one row of figures -> their containers, for what belongs below each."""
    places = st.columns(len(row))
    for place, card in zip(places, row, strict=True):
        draw_card(place, card)
    return places


def draw_card(place: DeltaGenerator, card: Card) -> None:
    """Draw one figure in a container."""
    place.metric(
        card.label,
        card.value,
        card.against,
        border=True,
        height="stretch",
        help=card.help,
        delta_color="normal" if card.signed else "off",
        delta_arrow="auto" if card.signed else "off",
    )


def number(value: float | None, form: str = "{:.2f}") -> str:
    """Write a figure: a dash while there is none, ∞ where it has no bound."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else form.format(value)
