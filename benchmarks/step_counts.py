"""Count how often tree decoding accepts children, by level and rank. L = levels, B = ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.decoding.loop import DecodeStep
from sequoia_core.trees.tree import TokenTree


def count_by_depth(steps: Sequence[DecodeStep], tree: TokenTree) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each level and rank, how often children of accepted nodes were accepted, and how often tried.

    A step that ends at EOS or at the token limit is counted up to that point.

    Args:
        steps: steps decoded with `tree`; steps with a tree truncated at the end of the context are ignored.

    Returns:
        accepted, reached: int64 [L, B]; row `level - 1`, column `k - 1`; L is the tree's depth and B its width.
    """
    steps = _whole_steps(steps, tree)
    on_path, continued = np.zeros((2, len(steps), tree.size), dtype=bool)
    for index, step in enumerate(steps):
        on_path[index, list(step.accepted_path)] = True
        # Decoding may end at the last node of the path, whose children are then never tried.
        continued[index, list(step.accepted_path[: len(step.new_tokens)])] = True
    nodes = np.arange(1, tree.size)
    cell = (tree.depths[nodes] - 1, tree.child_ranks[nodes] - 1)
    accepted, reached = np.zeros((2, tree.depth, tree.child_ranks.max()), dtype=np.int64)
    np.add.at(accepted, cell, on_path[:, nodes].sum(axis=0))
    np.add.at(reached, cell, continued[:, tree.parents[nodes]].sum(axis=0))
    return accepted, reached


def matrix_from_counts(
    accepted: np.ndarray, reached: np.ndarray, *, meta: dict[str, Any] | None = None
) -> AcceptanceMatrix:
    """Convert counts, int64 [L, B], to probabilities; a cell without trials gets its rank's rate over all levels.

    Not all nodes of a level have the same number of children, so ranks are tried in different numbers of steps, and a
    row of rates may sum to more than 1. In that case, the cells without trials are scaled down first, and the others
    only if they sum to more than 1 by themselves.
    """
    seen = reached > 0
    probs = np.where(seen, accepted / np.maximum(reached, 1), 0.0)
    probs /= np.maximum(probs.sum(axis=1, keepdims=True), 1.0)
    pooled = accepted.sum(axis=0) / np.maximum(reached.sum(axis=0), 1)
    borrowed = np.where(seen, 0.0, pooled)
    room = 1.0 - probs.sum(axis=1, keepdims=True)
    wanted = borrowed.sum(axis=1, keepdims=True)
    probs = probs + borrowed * np.minimum(1.0, room / np.maximum(wanted, 1e-300))
    return AcceptanceMatrix(probs=np.clip(probs, 0.0, 1.0), trials=reached, meta=meta or {})


def _whole_steps(steps: Sequence[DecodeStep], tree: TokenTree) -> list[DecodeStep]:
    """Return the steps whose tree was not truncated at the end of the context."""
    whole = [step for step in steps if step.tree.size == tree.size or step.tree != tree.cut_to_depth(step.tree.depth)]
    if not whole:
        raise ValueError("steps: found none with an untruncated tree, expected at least one")
    if tree.size == 1:
        raise ValueError("tree: found one node, expected at least one child")
    other = next((step for step in whole if len(step.tokens) != tree.size), None)
    if other is not None:
        raise ValueError(f"steps: found a step with {len(other.tokens)} nodes, expected {tree.size} as in the tree")
    return whole
