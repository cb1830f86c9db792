"""The picture of the planned tree, which grows and shrinks while the size slider is dragged."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.trees.grown import grow_best_trees
from sequoia_core.trees.optimal import node_scores
from ui import controls
from ui.session import core_cache, shipped
from ui.token_tree import CSS, STAGE, Figure, drawn_shape, read_html, read_script, to_wire

WORDS = "Words: what the demo draft proposed after an example prompt. Wider edges are accepted more often."
RANKS = "Numbers: the rank of each guess. Wider edges are accepted more often."
MAX_SIZE_AHEAD = 512  # largest tree that follows the slider before Python has answered
_COMPONENT = st.components.v2.component(
    "sequoia_plan_tree",
    html=read_html("plan_tree"),
    css=CSS,
    js=read_script(f"plan_tree {STAGE}"),
)


def _find_next_parent(tree: TokenTree, vector: AcceptanceVector, depth: int) -> int | None:
    """Return the parent of the node that the next larger tree adds; None if the trees differ in more than that node."""
    try:
        larger = core_cache.best_tree(vector, tree.size + 1, depth)
    except ValueError:
        return None
    shared = larger.shared_with(tree)
    new = np.flatnonzero(shared < 0)
    return int(shared[larger.parents[new[0]]]) if len(new) == 1 else None


def draw_picture(
    tree: TokenTree,
    vector: AcceptanceVector,
    depth: int,
    *,
    figures: Sequence[Figure],
    gain: float | None,
    example: bool,
) -> None:
    """Draw the tree.

    Args:
        depth: maximum depth of the trees that are shown while the size slider is dragged.
        figures: shown on the picture's upper edge.
        gain: the next node's gain in tokens per step; None if there is no larger tree.
        example: whether the words of the demo pair's example fit.
    """
    words = shipped.example_tokens() if example else {}
    parent = None if gain is None else _find_next_parent(tree, vector, depth)
    _COMPONENT(
        key="tree_picture",
        data={
            "tree": _scored_shape(tree, vector),
            "sizes": _best_shapes(vector, depth),
            "words": words,
            "next": None if parent is None else {"parent": parent, "gain": gain},
            "figures": figures,
            "caption": WORDS if words else RANKS,
        },
    )


def _scored_shape(tree: TokenTree, vector: AcceptanceVector) -> dict[str, Any]:
    """Return a tree in the component's form, with each node's acceptance probability f(v) [n]."""
    scores = [float(f"{score:.3g}") for score in node_scores(tree, vector)]
    return to_wire({**drawn_shape(0, tree.parents.tolist()), "scores": scores})


@core_cache.cached(16)
def _best_shapes(vector: AcceptanceVector, depth: int) -> list[dict[str, Any]]:
    """Return the best tree of each of the slider's sizes, as far as they are known from one search."""
    try:
        trees = grow_best_trees(vector, max_size=MAX_SIZE_AHEAD, max_depth=depth)
    except ValueError:  # too many ranks to search
        return []
    if trees.tables and len(vector.levels) > 1:
        return []  # each size would need a search of its own
    sizes = [size for size in controls.SLIDER_SIZES if 1 < size <= MAX_SIZE_AHEAD and trees.tokens[size, depth] > 0]
    return [_scored_shape(trees.tree(size, depth), vector) for size in sizes]
