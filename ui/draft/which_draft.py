"""Which draft? The one in use against none, by trees of text already seen, and against both: in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import streamlit as st

from ui import controls
from ui.jobs import replays
from ui.markdown import escaped
from ui.phrases import beside
from ui.session import evidence, predictions, session

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector


def section(vector: AcceptanceVector) -> None:
    """Say what the draft, none and both yield at the settings of the vector in use; nothing for another pair's."""
    if vector.holds_for is None or predictions.vector_faults():
        return
    said = _measured(vector)
    st.markdown(f":material/compare_arrows: **Which draft?** {said or _not_measured(vector)}")
    if said is None:
        words = "Measure the draft, none and both on this pair"
        controls.page_link(st, "exact", words, ":material/play_circle:", robustness_section="Verifiers")


def _measured(vector: AcceptanceVector) -> str | None:
    """Say what was decoded for real with each; None where that was not measured on this pair at these settings."""
    try:
        record = evidence.latest("comparison")
    except ValueError:
        return None  # the evidence page says what is wrong with the file
    if record is None or record["settings"]["pair"] != session.pair_name():
        return None
    settings, held = record["settings"], vector.holds_for
    at = "T = 0" if held.temperature == 0 else f"T = {held.temperature:g}, top-p {held.top_p:g}"
    same = [row for row in record["runs"] if (row["temperature"], row["top_p"]) == (held.temperature, held.top_p)]
    rows = {row["verifier"]: row for row in same}
    alone = rows.get(held.verifier, rows.get("greedy"))
    if alone is None or not {"lookup", "hybrid"} <= set(rows):
        return None
    return (
        f"Tokens per step at {at}, by decoding {settings['prompts']} prompts with trees of at most "
        f"n = {len(settings['tree'])}: {escaped(held.draft)} {_yield(alone)}, none (lookup) {_yield(rows['lookup'])}, "
        f"both (hybrid) {_yield(rows['hybrid'])}; 95% intervals."
    )


def _yield(row: Mapping[str, Any]) -> str:
    return f"{row['tokens_per_step']:.2f}{beside(row['ci_low'], row['ci_high'])}"


def _not_measured(vector: AcceptanceVector) -> str:
    """Describe the replayed result without a draft; the hybrid was not measured."""
    found = replays.of_target(vector.holds_for)
    both = "Both together (hybrid) were not measured on this pair at these settings."
    if found is None:
        return f"None (lookup): replay recorded answers to know what it yields. {both}"
    size = found.report.own.best_size(None)
    tokens = found.report.own.tokens_per_step(size)
    row = {"tokens_per_step": tokens.value, "ci_low": tokens.low, "ci_high": tokens.high}
    return f"None (lookup), with at most n = {size}: {_yield(row)} tokens per step in {found.name}. {both}"
