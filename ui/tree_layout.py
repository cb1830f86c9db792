"""Where each node of a tree is drawn. Knows shape only: no labels, no pixels. n = nodes including the root."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sequoia_core.design.tree import TokenTree

MAX_DRAWN = 4_096  # nodes that a browser still draws


def tidy_layout(tree: TokenTree) -> np.ndarray:
    """Place leaves one unit apart and every parent centred over its first and last child.

    Siblings stay in rank order, so no two edges cross; every subtree owns its own interval of the width.

    Args:
        tree: the tree to draw.

    Returns:
        float64 [n, 2]: column 0 across, from 0 to leaves - 1; column 1 the depth in edges.
    """
    parents, levels = tree.parents, tree.levels
    leaves = np.zeros(tree.size, dtype=np.int64)
    for level in reversed(levels):
        leaves[level] = np.maximum(leaves[level], 1)
        if level[0] > 0:
            np.add.at(leaves, parents[level], leaves[level])

    # A node's interval starts where its parent's does, moved right by the leaves of its elder siblings.
    start = np.zeros(tree.size, dtype=np.int64)
    for level in levels[1:]:
        before = np.cumsum(leaves[level]) - leaves[level]
        first = np.searchsorted(parents[level], parents[level], side="left")
        start[level] = start[parents[level]] + before - before[first]

    across = start.astype(np.float64)
    for level in reversed(levels[1:]):
        owners, first = np.unique(parents[level], return_index=True)
        last = np.append(first[1:], len(level)) - 1
        across[owners] = (across[level[first]] + across[level[last]]) / 2
    return np.column_stack([across, tree.depths.astype(np.float64)])


def visible_nodes(
    tree: TokenTree, scores: np.ndarray, *, at_least: float = 0.0, collapsed: Collection[int] = ()
) -> np.ndarray:
    """Say which nodes are drawn: those above a score, not below a collapsed node; bool [n], always with the root.

    Args:
        scores: float64 [n], f(v).
        at_least: smallest score drawn.
        collapsed: nodes whose descendants are hidden.
    """
    shown = np.zeros(tree.size, dtype=bool)
    shown[0] = True
    closed = np.zeros(tree.size, dtype=bool)
    closed[[node for node in collapsed if node < tree.size]] = True
    for level in tree.levels[1:]:
        above = tree.parents[level]
        shown[level] = shown[above] & ~closed[above] & (scores[level] >= at_least)
    return shown
