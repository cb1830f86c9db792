"""Acceptance counted in real tree decoding. s = steps, n = tree nodes, L = levels, B = ranks, b = bins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.loop import DecodeStep
from ..design.acceptance_matrix import AcceptanceMatrix
from ..design.bootstrap import wilson_interval
from ..design.tree import TokenTree

BINS = 10  # of a draft's probability


def count_by_depth(steps: Sequence[DecodeStep], tree: TokenTree) -> tuple[np.ndarray, np.ndarray]:
    """Count how often the child of each rank was there and was the accepted one, below accepted nodes of each level.

    A step cut at EOS or at the token limit counts up to there.

    Args:
        steps: decoded with `tree`; those whose tree a context's end has cut are left out.

    Returns:
        accepted, reached: int64 [L, B]; row `level - 1`, column `k - 1`; L is the tree's depth and B its width.
    """
    steps = _whole_steps(steps, tree)
    taken, went_on = np.zeros((2, len(steps), tree.size), dtype=bool)
    for row, onward, step in zip(taken, went_on, steps, strict=True):
        row[list(step.accepted_path)] = True
        onward[list(step.accepted_path[: len(step.new_tokens)])] = True  # not the node with which the text ends
    nodes = np.arange(1, tree.size)
    cell = tree.depths[nodes] - 1, tree.child_ranks[nodes] - 1
    accepted, reached = np.zeros((2, tree.depth, tree.child_ranks.max()), dtype=np.int64)
    np.add.at(accepted, cell, taken[:, nodes].sum(axis=0))
    np.add.at(reached, cell, went_on[:, tree.parents[nodes]].sum(axis=0))
    return accepted, reached


def matrix_from_counts(
    accepted: np.ndarray, reached: np.ndarray, *, meta: dict[str, Any] | None = None
) -> AcceptanceMatrix:
    """Turn counts, int64 [L, B] each, into probabilities; a cell never seen takes its rank's rate over all levels.

    Ranks of a level are counted over different nodes where some have fewer children, so a row may exceed 1 by
    chance: borrowed cells are scaled down first, and counted ones too if they exceed 1 alone.
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


def acceptance_by_depth(steps: Sequence[DecodeStep], tree: TokenTree) -> AcceptanceMatrix:
    """Return P(child of rank k is the accepted one | its parent at depth level - 1 was), as decoding showed it.

    It tests the paper's assumption (§3.1) of one vector for all levels, which does not hold where rows differ. 0 trials
    mark a cell borrowed from its rank's other levels.
    """
    accepted, reached = count_by_depth(steps, tree)
    counted = len(_whole_steps(steps, tree))
    meta = {"source": "counted in real tree decoding", "steps": counted, "tree_size": tree.size}
    return matrix_from_counts(accepted, reached, meta=meta)


@dataclass(frozen=True, slots=True, eq=False)
class ConfidenceCurve:
    """How often an offered child was accepted, by what the draft gave its token.

    Attributes:
        edges: float64 [b + 1], bounds of draft probability; a bin holds its lower bound, the last one both.
        offered, accepted: int64 [b], children offered to the target, and those it accepted.
        mean_draft: float64 [b], mean draft probability of those offered; NaN where there were none.
    """

    edges: np.ndarray
    offered: np.ndarray
    accepted: np.ndarray
    mean_draft: np.ndarray

    @property
    def rate(self) -> np.ndarray:
        """Share accepted of those offered, float64 [b]; NaN where there were none."""
        return np.where(self.offered > 0, self.accepted / np.maximum(self.offered, 1), np.nan)

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Return 95 % Wilson bounds of the rate, float64 [b] each; (0, 1) where there are no offers."""
        low, high = wilson_interval(np.nan_to_num(self.rate), np.maximum(self.offered, 1), 0.95)
        none = self.offered == 0
        return np.where(none, 0.0, low), np.where(none, 1.0, high)

    def rows(self) -> list[dict[str, float | int | None]]:
        """Return one plain row per bin, for a table or a file."""
        low, high = self.interval()
        return [
            {
                "draft_from": float(self.edges[i]),
                "draft_to": float(self.edges[i + 1]),
                "offered": int(self.offered[i]),
                "accepted": int(self.accepted[i]),
                "mean_draft": float(self.mean_draft[i]) if self.offered[i] else None,
                "rate": float(self.rate[i]) if self.offered[i] else None,
                "ci_low": float(low[i]),
                "ci_high": float(high[i]),
            }
            for i in range(len(self.offered))
        ]


def acceptance_by_confidence(steps: Sequence[DecodeStep], tree: TokenTree) -> ConfidenceCurve:
    """Return how often offered children were accepted, in equal bins of the draft's probability of their token.

    A child is offered when its parent was accepted and its elder siblings were rejected; the draft's probability is
    that of its first row, before siblings were taken out.
    """
    steps = _whole_steps(steps, tree)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    offered, accepted, total = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64), np.zeros(BINS)
    for step in steps:
        outcomes, draft = np.array(step.outcomes[1:]), np.array(step.draft_probs[1:])
        tried = outcomes != "not reached"
        bin_of = np.clip(np.searchsorted(edges, draft, side="right") - 1, 0, BINS - 1)
        offered += np.bincount(bin_of[tried], minlength=BINS)
        accepted += np.bincount(bin_of[outcomes == "accepted"], minlength=BINS)
        total += np.bincount(bin_of[tried], weights=draft[tried], minlength=BINS)
    mean = np.where(offered > 0, total / np.maximum(offered, 1), np.nan)
    return ConfidenceCurve(edges, offered, accepted, mean)


def _whole_steps(steps: Sequence[DecodeStep], tree: TokenTree) -> list[DecodeStep]:
    """Return the steps with the whole tree, not cut at a context's end."""
    whole = [step for step in steps if step.tree.size == tree.size or step.tree != tree.down_to(step.tree.depth)]
    if not whole:
        raise ValueError("steps: found none, expected at least one")
    if tree.size == 1:
        raise ValueError("tree: found one node, expected at least one child")
    other = next((step for step in whole if len(step.tokens) != tree.size), None)
    if other is not None:
        raise ValueError(f"steps: found one of {len(other.tokens)} nodes, expected the tree's {tree.size}")
    return whole
