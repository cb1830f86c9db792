"""The acceptance section: the current vector, its source, its charts, and ways to change it."""

from contextlib import suppress

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.files.extras import provided
from sequoia_core.trees.plain import chain_limit
from ui import controls
from ui.cards import Card, cards, number
from ui.charts.acceptance import acceptance_figure, depth_figure, rejection_figure
from ui.draft import vector_editing
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.measuring import declaration
from ui.phrases import between, count, shape
from ui.session import core_cache, predictions, session
from ui.vector_input import MAX_NOTE

MAX_COMPARED = 5  # with the current vector, as many as there are distinct colours


def precision_note(vector: AcceptanceVector) -> str | None:
    """Return how many more prompts are needed to know every rank to within ±0.01, as a sentence; None if unknown."""
    more = vector.more_prompts(0.02)
    if more is None:
        return None
    if more == 0:
        return "Every rank is known to within ±0.01."
    return f"About {more:,} more prompts like these would determine every rank to within ±0.01."


def acceptance_section() -> None:
    """Draw the vector's source, figures and charts, and the controls that change it."""
    st.caption("How often does the target accept the draft's first, second, … choice? All predictions depend on it.")
    source = controls.source_picker("Source of the vector", ["Show", "Measure", "What-if"], key="acceptance_way")
    if source == "Measure":
        measurement.measurement_section()
    supposed = dict([vector_editing.what_if_controls()]) if source == "What-if" else {}
    vector = session.acceptance()
    _acceptance_cards(vector)
    _acceptance_charts(vector, supposed)
    _acceptance_by_depth(vector)
    st.markdown(f":material/label: **Current:** {escaped(session.acceptance_source())}")
    _notes(vector)
    declaration.declaration_section(vector)
    vector_editing.smoothing_controls()
    with st.expander("Edit the numbers", icon=":material/edit:", key="acceptance_edit"):
        vector_editing.edit_table(vector)
    controls.download_button(
        "Download as JSON",
        vector.to_bytes,  # called only on request, because it takes a quarter of a second
        "acceptance.json",
        key="acceptance_download",
        help="The app's native format, with trials and per-prompt sums.",
    )


def _acceptance_cards(vector: AcceptanceVector) -> None:
    accepted = 1.0 - vector.reject
    interval = vector.interval()
    if interval is not None:
        certainty = f"p₁ {between(interval[0][0], interval[1][0], '{:.1%}')}"
    else:
        certainty = "one prompt: no interval" if vector.has_one_prompt else "no interval known"
    always_accepted = vector.has_one_prompt and vector.probs[0] == 1.0
    cards(
        Card(
            "First choice accepted",
            f"{vector.probs[0]:.1%}",
            f"p₁ of {count(len(vector), 'rank')}",
            help="p₁: how often the target accepts the draft's most likely token.",
        ),
        Card(
            "Any choice accepted",
            f"{accepted:.1%}",
            f"{100 * (accepted - vector.probs[0]):+.1f} points over p₁",
            help="Sum of the vector: a chain can use only the first choice, a tree can use all. The remainder is the "
            "probability that every child is rejected, which ends the step.",
        ),
        Card(
            "Best possible chain",
            "unknown" if always_accepted else number(chain_limit(vector)),
            "one prompt is not enough" if vector.has_one_prompt else "tokens/step, vs 1.00",
            help="1 ÷ (1 − p₁) tokens per step, compared with 1.00 without a draft: no chain of guesses, however long, "
            "yields more. A tree can.",
        ),
        Card(
            "Positions measured",
            f"{vector.trials:,}" if vector.trials else "unknown",
            certainty,
            help="Number of target positions measured, and the 95% interval of p₁, which needs two prompts or more.",
        ),
    )


def _acceptance_charts(vector: AcceptanceVector, supposed: dict[str, AcceptanceVector]) -> None:
    """Draw acceptance and rejection by rank, with other vectors for comparison on request."""
    current = session.acceptance_name()
    vectors = session.vectors()
    titles = {name: session.vector_title(name) for name in vectors}
    compared = st.multiselect(
        "Compare with",
        [name for name in vectors if name != current],
        max_selections=MAX_COMPARED,
        format_func=titles.__getitem__,
        placeholder="No other vector",
        key="acceptance_others",
        persist_state="session",
    )
    shown = {current or "in use": vector}
    if session.is_varied():
        shown["not smoothed"] = session.original_acceptance()
    shown |= {name: vectors[name] for name in compared}
    shown |= {f"if {name}": each for name, each in supposed.items()}
    left, right = st.columns(2)
    left.subheader("Acceptance by rank")
    left.plotly_chart(
        acceptance_figure({titles.get(name, name): each for name, each in shown.items()}),
        key="acceptance_ranks",
        alt=f"Acceptance probability by rank; rank 1: {vector.probs[0]:.1%}",
    )
    right.subheader("Rejection by children tried")
    right.plotly_chart(
        rejection_figure(shown),
        key="acceptance_rejection",
        alt="Probability that the first k children are all rejected, decreasing with k, on log-log axes",
    )


def _notes(vector: AcceptanceVector) -> None:
    ending = vector.meta.get("prompt_ending")
    parts = (vector.note, vector.meta.get("source"), precision_note(vector), ending and f"prompts end: {ending}")
    notes = [str(text)[:MAX_NOTE].strip(" .") for text in parts if text]
    if any(notes):
        st.caption(":material/info: " + " ".join(f"{escaped(note[0].upper() + note[1:])}." for note in notes if note))


def _acceptance_by_depth(vector: AcceptanceVector) -> None:
    """Draw a head's acceptance matrix; draw nothing for a draft model."""
    matrix = vector.by_depth
    if matrix is None:
        return
    st.subheader("Acceptance by depth")
    st.plotly_chart(
        depth_figure(matrix),
        key="acceptance_depths",
        alt=f"Acceptance by depth and rank; rank 1 from {matrix.probs[0, 0]:.0%} to {matrix.probs[-1, 0]:.0%}",
    )
    st.markdown(
        f":material/layers: The target's hidden states describe the text only up to the root, so deeper guesses know "
        f"less: the first choice is right {matrix.probs[0, 0]:.0%} of the time at depth 1 and "
        f"{matrix.probs[-1, 0]:.0%} at depth {len(matrix.probs)}. Trees are planned with this matrix. "
        + _describe_loss(vector)
    )
    with suppress(ValueError):  # raised if the file has no per-position acceptance
        for found in filter(None, (remark(vector) for remark in provided("vector_remarks"))):
            st.warning(str(found))


def _describe_loss(vector: AcceptanceVector) -> str:
    """Describe the speed lost by planning with the first depth alone; empty if nothing is predicted."""
    hardware = session.profile() if predictions.prediction_basis().predicts else None
    found = None if hardware is None else core_cache.without_depth(vector, hardware)
    if found is None:
        return ""
    return (
        f"Planned with the first depth's vector alone, the tree would be {shape(found.size, found.depth)}, "
        f"predicted to reach {found.promised:.2f}×, but reach only {found.speedup:.2f}×, "
        f"{max(0.0, found.loss):.1%} less than the tree planned by depth."
    )
