"""Two runs compared: their figures against each other, and where their texts part."""

from typing import Any

import streamlit as st

from sequoia_core.design.near_ties import gap_words
from ui.cards import Card, cards, number
from ui.markdown import escaped, quoted
from ui.runs import run_comparison, runs

CONTEXT_CHARS = 240  # shown before the place where two texts part
AHEAD_CHARS = 240


def draw_figures(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Draw the figures of the first, each beside that of the second."""
    first, second = runs.summary_of(left), runs.summary_of(right)

    def card(label: str, name: str, form: str, help: str) -> Card:
        return Card(
            label, number(getattr(first, name), form), f"second {number(getattr(second, name), form)}", help=help
        )

    cards(
        card("Tokens per step", "tokens_per_step", "{:.2f}", "Committed tokens ÷ target passes."),
        card(
            "Tokens per second",
            "tokens_per_sec",
            "{:,.0f}",
            "All tokens over the seconds of all steps, prompt reading left out.",
        ),
        card("Speedup", "speedup", "{:.2f}×", "Each against its own autoregressive baseline (1.00×)."),
        card("Steps", "steps", "{:d}", "Target passes of the run."),
    )


def draw_text(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Say where the texts part, and show both from there on."""
    if left["prompt"] != right["prompt"]:
        st.warning("These runs go on from different prompts: their texts do not compare.", icon=":material/warning:")
        return
    place = run_comparison.divergence(left, right)
    if place is None:
        st.success("Both wrote the same text.", icon=":material/check_circle:")
        return
    st.markdown(
        f"Both begin with the same **{place.same}** characters. "
        + " ".join(
            f"The {name} parts in step {step + 1}." if step is not None else f"The {name} ends there."
            for name, step in zip(("first", "second"), place.steps, strict=True)
        )
        + _token_words(left, right)
    )
    for column, run, name in zip(st.columns(2), (left, right), ("First", "Second"), strict=True):
        text = run_comparison.text_of(run)
        column.caption(f"{name}, from the last words that both have")
        start = max(place.same - CONTEXT_CHARS, 0)
        column.code(
            f"{text[start : place.same]}▸{text[place.same : place.same + AHEAD_CHARS]}", language=None, wrap_lines=True
        )


def _token_words(left: dict[str, Any], right: dict[str, Any]) -> str:
    """Name the first token that differs, and say whether rounding explains it, for greedy runs of one target."""
    if not left["temperature"] == right["temperature"] == 0 or left["target"] != right["target"]:
        return ""
    found = run_comparison.first_token(left, right)
    if found is None:
        return ""
    one, other = (escaped(quoted(text)) for text in found.texts)
    words = f" Token {found.place + 1} is {one} in the first and {other} in the second"
    if found.gap is None:
        return f"{words}; the runs do not record both of their logits, so whether it is a near tie is not known."
    exact = left["dtype"] == right["dtype"] == "float32"
    return f"{words}: {gap_words(found.gap, exact=exact)}."
