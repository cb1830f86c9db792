"""What a draft head's choices are worth at each depth, and what planning as if all depths were alike would lose."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.servers.chain_acceptance import counts_of_vector
from sequoia_core.servers.rules import wired_wrong
from ui import charts
from ui.phrases import shape
from ui.session import core_cache, predictions, session

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector

SIZE, DEEPEST = 32, 16  # of the trees that are compared where no times say what pays


def section(vector: AcceptanceVector) -> None:
    """Draw the matrix of a head, and beside it what each depth adds to a chain; nothing for a model."""
    matrix = vector.by_depth
    if matrix is None:
        return
    flat = replace(vector, by_depth=None)
    depths = range(1, len(matrix.probs) + 1)
    chains = [[core_cache.tokens_per_step(each, chain_tree(d)).value for d in (0, *depths)] for each in (vector, flat)]
    own, alike = ([after - before for before, after in zip(row, row[1:], strict=False)] for row in chains)
    left, right = st.columns(2)
    left.subheader("Acceptance by depth")
    left.plotly_chart(
        charts.depth_figure(matrix),
        width="stretch",
        key="acceptance_depths",
        alt=f"Acceptance by depth and rank; rank 1 falls from {matrix.probs[0, 0]:.0%} to {matrix.probs[-1, 0]:.0%}",
    )
    right.subheader("What a depth is worth")
    right.plotly_chart(
        charts.depth_worth_figure(own, alike),
        width="stretch",
        key="acceptance_depth_worth",
        alt=f"Tokens per step that each depth adds to a chain, from {own[0]:.2f} to {own[-1]:.2f}",
    )
    st.markdown(
        f":material/layers: The first guess of a step comes from the target's true states, those below from the head's "
        f"own output: the first choice is right {matrix.probs[0, 0]:.0%} of the time at depth 1 and "
        f"{matrix.probs[-1, 0]:.0%} at depth {len(matrix.probs)}. Trees are planned by this matrix. "
        + _loss(vector, flat)
    )
    with suppress(ValueError):  # a file that does not tell what was accepted at each position
        if (found := wired_wrong(counts_of_vector(vector, ""))) is not None:
            st.warning(str(found))


def _loss(vector: AcceptanceVector, flat: AcceptanceVector) -> str:
    """Say what a tree planned by the first depth alone would lose: in speed where times are known, else in tokens."""
    hardware = session.profile() if predictions.state().name != predictions.MISSING else None
    found = None if hardware is None else core_cache.without_depth(vector, hardware)
    if found is not None:
        return (
            f"Planned by the first depth's vector alone, the tree would be {shape(found.size, found.depth)}: it would "
            f"promise {found.promised:.2f}× and bring {found.speedup:.2f}×, {max(0.0, found.loss):.1%} less than the "
            "tree planned by depth."
        )
    mine, other = (core_cache.best_tree(each, SIZE, DEEPEST) for each in (vector, flat))
    best, theirs = (expected_tokens(tree, vector) for tree in (mine, other))
    return (
        f"Of n = {SIZE}, the tree planned by the first depth's vector alone is {other.depth} deep, the one planned by "
        f"depth {mine.depth}: it would promise {expected_tokens(other, flat):.2f} tokens per step and bring "
        f"{theirs:.2f}, {1 - theirs / best:.1%} less than the tree planned by depth."
    )
