"""The loss from using a tree designed for an acceptance vector other than the one that applies."""

from collections.abc import Sequence

import streamlit as st
from plotly.colors import sample_colorscale

from sequoia_core import AcceptanceVector
from sequoia_core.trees.comparison import Regret
from ui import controls
from ui.cards import Card, cards
from ui.markdown import escaped
from ui.session import core_cache, session

DEFAULT_SHAPE = (64, 8)  # large enough for the trees to differ; trees planned for a small CPU are all similar
SHADES = ["#5F6B72", "#A8481A"]
SHOWN_LOSS = 0.0005  # tokens per step; smaller losses are shown as zero
DARKEST = 0.5  # tokens per step; a fixed scale, so that a small loss does not look like a large one
MAX_VECTORS = 10  # more vectors make the matrix unreadable


def regret_section() -> None:
    """Draw the loss of each selected vector's tree under the other vectors."""
    st.caption(
        "Must the tree be redesigned for every temperature, domain and pair, or is one tree enough? "
        "Each cell is the loss of a tree under another vector."
    )
    vectors = session.vectors()
    current = _pair(session.acceptance())  # without a vector, this shows what is missing, and stops the page
    fitting = sorted(vectors, key=lambda name: _pair(vectors[name]) != current)  # those of the current models first
    measured = sum(_pair(vector) == current for vector in vectors.values())
    chosen = st.pills(
        "Acceptance vectors",
        list(vectors),
        selection_mode="multi",
        default=fitting[: min(max(measured, 2), 4)],
        key="regret_vectors",
        bind="query-params",
        help="The shipped vectors and this session's. Measure or upload more on the draft page.",
    )
    n, d = controls.size_and_depth_sliders(
        *st.columns(2),
        keys=("regret_n", "regret_d"),
        default=DEFAULT_SHAPE,
        smallest=2,
        size_help="including the root; the same for every tree in the matrix.",
    )
    if len(chosen) > MAX_VECTORS:
        st.info(
            f"Only the first {MAX_VECTORS} of the {len(chosen)} selected vectors are compared.", icon=":material/info:"
        )
        chosen = chosen[:MAX_VECTORS]
    if len(chosen) < 2:
        st.info("Select at least two vectors.", icon=":material/info:")
        return
    try:
        regret = core_cache.regret(tuple(vectors[name] for name in chosen), size=n, depth=d)
    except ValueError as error:
        st.warning(f"{escaped(str(error))}. Increase the depth or reduce the size.", icon=":material/warning:")
        return
    _draw_regret(regret, chosen, f"With n = {n} and d ≤ {d}")


def _pair(vector: AcceptanceVector) -> tuple[str, str] | None:
    """Return the names of the models that a vector was measured for; None if they are unknown."""
    return vector.holds_for and (vector.holds_for.target, vector.holds_for.draft)


def _draw_regret(regret: Regret, names: Sequence[str], shape: str) -> None:
    """Draw the key figures, the matrix and the conclusion; `shape` is the phrase that begins a sentence."""
    tree, applied = (escaped(names[i]) for i in regret.worst)
    safest = escaped(names[regret.safest])
    largest = regret.lost[regret.worst]
    cards(
        Card(
            "Largest regret",
            f"{largest:.3f} tokens/step",
            f"{regret.share[regret.worst]:.1%} of that vector's optimum",
            help=f"The loss from using the tree for {tree} when {applied} applies.",
        ),
        Card(
            "Mean regret",
            f"{regret.mean:.3f} tokens/step",
            "over all ordered pairs",
            help="The unweighted mean over all ordered pairs of different vectors; a tree loses nothing under its own.",
        ),
        Card(
            "Safest tree",
            safest,
            f"loses at most {regret.lost[regret.safest].max():.3f}",
            help="The tree with the smallest maximum regret over the selected vectors.",
        ),
    )
    st.dataframe(
        regret.to_frame(names).style.format("{:.3f}").map(shade),
        alt=f"Tokens per step that each row's tree loses under each column's vector; at most {largest:.3f}",
    )
    if largest < 1e-9:
        st.markdown(f"{shape}, all selected vectors have the same best tree or equally good ones.")


def shade(lost: float) -> str:
    """Return the style of a cell, which the loss turns from grey to rust; white text is readable on both."""
    if lost < SHOWN_LOSS:
        return ""
    (colour,) = sample_colorscale(SHADES, min(lost / DARKEST, 1.0))
    return f"background-color: {colour}; color: white"
