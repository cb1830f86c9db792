"""The speedup surface: the optimum with its interval, what is nearly as good, and taking a shape by clicking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.model_shapes import find_shape
from sequoia_core.design.planning import more_ranks_wanted, smallest_good_shape
from sequoia_core.design.roofline import largest_tree, tree_bytes
from sequoia_core.files.dtypes import bytes_of
from sequoia_core.models.device import available_bytes
from sequoia_core.servers.flags import llama_server_sentence
from ui import charts, controls
from ui.markdown import escaped
from ui.phrases import beside, count, shape
from ui.session import core_cache, machine, predictions, session, tree_in_use

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile
    from sequoia_core.design.planning import BestShape
    from sequoia_core.models.pair_spec import PairSpec


def section(vector: AcceptanceVector, profile: HardwareProfile) -> None:
    """Draw the surface, by our formula or the paper's, and let a click choose a shape."""
    st.subheader("Predicted speedup")
    left, right = st.columns(2)
    solid = left.toggle("3-D surface", key="hardware_3d", bind="query-params", help="Needs WebGL in the browser.")
    paper = right.toggle(
        "Paper's formula",
        key="hardware_paper",
        bind="query-params",
        help="Speedup = G(n, d) ÷ (t(n) + d·c): every draft pass costs as much as one over a single token, and nothing "
        "is spent outside the passes. Ours counts each level at its own width and adds the rest of a step.",
    )
    surface, best, _ = core_cache.planned(vector, profile, paper)
    current = tree_in_use.current()
    words = f"Predicted speedup over n and d, best {best.predicted_speedup:.2f} at {shape(best.size, best.depth)}"
    if solid:
        figure = charts.speedup_surface_3d(surface, best)
        st.plotly_chart(figure, width="stretch", key="hardware_surface_3d", alt=words)
        return
    st.plotly_chart(
        charts.speedup_heatmap(surface, best, here=(current.size, current.depth)),
        width="stretch",
        key="hardware_surface",
        on_select="rerun",
        selection_mode="points",
        alt=words,
    )
    if (picked := controls.clicked("hardware_surface")) is not None:
        take(*map(int, picked[:2]), key="hardware_use_picked", label="Take the shape you clicked")
    small = smallest_good_shape(surface)
    st.caption(spread_sentence(vector, profile, best, small) + " Click the map to take another shape.")
    if (flags := llama_server_sentence(vector, profile, best.predicted_speedup)) is not None:
        st.caption(escaped(flags))
    if (memory := memory_sentence(session.pair_spec(), profile.dtype, best.size)) is not None:
        st.caption(memory)


def memory_sentence(pair: PairSpec, dtype: str, size: int) -> str | None:
    """Say what trees take in memory for a pair, and the largest that fits here; None where its sizes are unknown."""
    if pair.is_alone:
        return None
    try:
        target, draft = (find_shape(str(name)) for name in pair.sources)
        dtype = str(pair.dtype or dtype)
        bytes_of(dtype)
    except ValueError:  # a family whose sizes we cannot read, a pair not on this machine
        return None
    sizes = sorted({size, 128, core_cache.USUAL_SIZE, core_cache.MAX_SIZE})
    taken = ", ".join(
        f"{tree_bytes(target, draft, dtype=dtype, nodes=n) / 2**20:,.1f} MiB for n = {n:,}" for n in sizes if n > 1
    )
    words = f"A tree of the pair in use takes {taken} in {dtype}: caches, mask and rows of probabilities."
    free = None if machine.has_gpu() else available_bytes()
    if free is None:
        return words
    most = largest_tree(target, draft, dtype=dtype, free=free)
    return f"{words} The {free / 2**30:.1f} GiB free here would hold n = {most:,}."


def spread_sentence(vector: AcceptanceVector, profile: HardwareProfile, best: BestShape, small: BestShape) -> str:
    """Say how sure the optimum is, and which smaller tree is nearly as good."""
    if best.size < 2:
        return "No tree is predicted to be faster than plain decoding."
    tree = core_cache.best_tree(vector, best.size, best.depth)
    found = core_cache.prediction(vector, profile, tree).speedup
    sure = " (one prompt: no interval)" if vector.of_one_prompt else beside(found.low, found.high, unit="×")
    words = f"Best: {shape(best.size, best.depth)} at {best.predicted_speedup:.2f}×{sure}."
    if small.size < best.size:
        words += f" Already {shape(small.size, small.depth)} reaches {small.predicted_speedup:.2f}×."
    words += f" {more}" if (more := more_ranks_wanted(tree, vector)) else ""
    wanted, known = core_cache.prompts_for(vector, tree), vector.prompt_trials
    if wanted is not None and known is not None and wanted > len(known):
        words += f" ±5% takes {count(wanted, 'calibration prompt')}; this vector has {len(known)}."
    return words


def take(size: int, depth: int, *, key: str, label: str) -> None:
    """Offer to make a shape the tree of the other pages."""
    draw = st.button if predictions.lacks_measurement() else controls.primary_button
    if draw(
        f"{label}: {shape(size, depth)}",
        icon=":material/check:",
        key=key,
        help="Sets the tree for the Tree and Live pages.",
    ):
        tree_in_use.set_size_and_depth(size, depth)
        st.toast(f"The tree is now {shape(size, depth)}.", icon=":material/account_tree:")
