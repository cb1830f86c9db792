"""Learning from a run: what acceptance by rank its steps showed, and what tree to go on with.

A run drafts only the ranks that its tree has, and few of them often. So what it showed is mixed with the vector that
was in use, each rank by how often it was drafted. Only for trees whose shape does not follow the draft's confidence:
else the nodes that have many children are the unsure ones. Shapes: B = ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .acceptance import AcceptanceVector, wilson_interval
from .optimal_trees import expected_tokens, optimal_tree
from .planning import best_shape, speedup_surface
from .prediction import predicted_speedup
from .profile import HardwareProfile
from .tree import TokenTree

LEVEL = 0.95
FEWEST_TO_JUDGE = 10  # nodes below which an interval says nothing worth reading
USUAL_WEIGHT = 30.0  # nodes that the vector in use counts as, where its prompts do not tell
WEIGHTS = (5.0, 1000.0)


@dataclass(frozen=True, slots=True, eq=False)
class ObservedAcceptance:
    """What the steps of a run showed.

    Args:
        drafted: int64 [B], nodes on accepted paths that had a child of each rank.
        accepted: int64 [B], how many of those children were accepted.
    """

    drafted: np.ndarray
    accepted: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        """Share accepted, float64 [B]; NaN for a rank that was never drafted."""
        return np.divide(self.accepted, self.drafted, out=np.full(len(self.drafted), np.nan), where=self.drafted > 0)

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the 95 % Wilson bounds of the rates, float64 [B] each; 0 and 1 for a rank that was never drafted.

        They take nodes as independent; those of one text resemble each other, so they are somewhat too narrow.
        """
        known = self.drafted > 0
        low, high = np.zeros(len(known)), np.ones(len(known))
        low[known], high[known] = wilson_interval(self.rates[known], self.drafted[known], LEVEL)
        return low, high

    def outside(self, acceptance: AcceptanceVector) -> list[int]:
        """Return the ranks, from 1, whose value in a vector is outside the interval; of those drafted often enough."""
        low, high = self.interval()
        expected = _padded(acceptance.probs, len(self.drafted))
        wrong = ((expected < low) | (expected > high)) & (self.drafted >= FEWEST_TO_JUDGE)
        return (np.flatnonzero(wrong) + 1).tolist()


def observe(steps: Iterable[tuple[TokenTree, Sequence[int]]]) -> ObservedAcceptance:
    """Count acceptance by rank over steps, each a tree and its accepted path, node ids from the root."""
    drafted: list[int] = []
    accepted: list[int] = []
    for tree, path in steps:
        counts, ranks = tree.child_counts, tree.child_ranks
        for node, below in zip(path, [*path[1:], None], strict=True):
            children = int(counts[node])
            longer = [0] * (children - len(drafted))
            drafted, accepted = drafted + longer, accepted + longer
            for rank in range(children):
                drafted[rank] += 1
            if below is not None:
                accepted[int(ranks[below]) - 1] += 1
    return ObservedAcceptance(np.array(drafted, dtype=np.int64), np.array(accepted, dtype=np.int64))


def prior_weight(acceptance: AcceptanceVector) -> float:
    """Return how many nodes of a run the vector counts as: few where prompts differ much from each other.

    From the spread of rank 1 between the prompts behind the vector, less what chance alone would spread (the moments of
    a beta-binomial).
    """
    if acceptance.prompt_trials is None or np.count_nonzero(acceptance.prompt_trials) < 2:
        return USUAL_WEIGHT
    known = acceptance.prompt_trials > 0
    counts, mean = acceptance.prompt_trials[known], float(acceptance.probs[0])
    chance = mean * (1 - mean)
    between = np.var(acceptance.prompt_sums[known, 0] / counts, ddof=1) - float(np.mean(chance / counts))
    return float(np.clip(chance / between - 1, *WEIGHTS)) if between > 0 else WEIGHTS[1]


def learned_vector(
    acceptance: AcceptanceVector, observed: ObservedAcceptance, *, weight: float | None = None
) -> AcceptanceVector:
    """Return the vector in use as a run has corrected it.

    Each rank that was drafted is the mean of what the vector says and what the run showed, weighted by `weight` and by
    how often the rank was drafted. Ranks that were never drafted keep their value, as far as the others leave room for
    it: together they are at most 1.

    Args:
        weight: nodes that the vector counts as; None for `prior_weight`.
    """
    weight = prior_weight(acceptance) if weight is None else weight
    if not weight > 0:
        raise ValueError(f"weight: found {weight}, expected a number above 0")
    ranks = max(len(acceptance), len(observed.drafted))
    prior, drafted = _padded(acceptance.probs, ranks), _padded(observed.drafted, ranks)
    probs = (weight * prior + _padded(observed.accepted, ranks)) / (weight + drafted)
    seen = drafted > 0
    probs[seen] /= max(probs[seen].sum(), 1.0)
    room, kept = max(1.0 - probs[seen].sum(), 0.0), prior[~seen].sum()
    probs[~seen] = prior[~seen] * (min(1.0, room / kept) if kept else 1.0)
    nodes = int(observed.drafted.max(initial=0))
    meta = {**acceptance.meta, "learned_from_nodes": nodes, "prior_weight": round(weight, 1)}
    return replace(
        acceptance, probs=probs, trials=None, prompt_sums=None, prompt_trials=None, prompt_ranks=None, meta=meta,
        calibration=None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewPlan:
    """The tree to go on with.

    Attributes:
        tree: the best one under the learned vector.
        expected_tokens: of it, and `kept_tokens` of the tree so far, both under the learned vector.
        gain: predicted speed of the new tree ÷ that of the tree so far; without a profile, the ratio of their tokens.
    """

    tree: TokenTree
    expected_tokens: float
    kept_tokens: float
    gain: float


def plan_again(
    tree: TokenTree,
    learned: AcceptanceVector,
    profile: HardwareProfile | None,
    *,
    max_size: int,
    max_depth: int,
) -> NewPlan:
    """Choose the best tree under a learned vector, within bounds, and compare it with the tree so far.

    Args:
        profile: of this machine; None plans for the size and depth of the tree so far.
    """
    if profile is None:
        shape = tree.size, tree.depth
    else:
        size = min(max_size, profile.max_size)
        best = best_shape(speedup_surface(learned, profile, max_size=size, max_depth=max_depth))
        shape = best.size, best.depth
    new = optimal_tree(learned, size=shape[0], depth=shape[1])
    tokens = [expected_tokens(each, learned) for each in (new, tree)]
    if profile is None or tree.size > profile.max_size:
        gain = tokens[0] / tokens[1]
    else:
        gain = predicted_speedup(new, learned, profile) / predicted_speedup(tree, learned, profile)
    return NewPlan(new, tokens[0], tokens[1], gain)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    """Return the first `length` of the values with zeros behind them, float64 [length]."""
    found = np.zeros(length)
    found[: len(values)] = values[:length]
    return found
