"""Expansion policies: which nodes of a step's dynamic tree are read next, which children they get, which nodes stay.

Shapes: n = nodes so far, w = nodes read in one draft pass (the frontier), k = ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ...design.tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBounds:
    """Limits of all trees of a run, or of one step's.

    Args:
        max_size: nodes, root included.
        max_depth: edges from the root, and draft passes of one step.
        beam: nodes that one draft pass reads.
        branch: children of one node.

    """

    max_size: int
    max_depth: int
    beam: int
    branch: int

    def down_to(self, depth: int) -> TreeBounds:
        """Return the bounds of a step whose draft proposes no deeper than this, which may be 0."""
        return TreeBounds(max_size=self.max_size, max_depth=depth, beam=self.beam, branch=self.branch)

    @property
    def most_read(self) -> int:
        """Nodes that the draft reads in one step at most."""
        return 1 + (self.max_depth - 1) * self.beam


class Nodes(NamedTuple):
    """The nodes of one step's tree so far, the root first and parents before their children.

    Attributes:
        parents: int64 [n], -1 for the root.
        ranks: int64 [n], order among siblings from 1; 0 for the root.
        depths, tokens: int64 [n].
        probs: float64 [n], what the draft gave each token after its parent; 1 for the root.
        scores: float64 [n], chance that the node is accepted, as known when the step is drafted.
        cache_positions: int64 [n], position in the draft's cache counted from the root's; -1 for nodes not read yet.
        looked_up: int64 [n], 1 for a node proposed by text already seen, before its parent was read; else 0.
    """

    parents: np.ndarray
    ranks: np.ndarray
    depths: np.ndarray
    tokens: np.ndarray
    probs: np.ndarray
    scores: np.ndarray
    cache_positions: np.ndarray
    looked_up: np.ndarray

    @classmethod
    def root(cls, token: int) -> Nodes:
        parents, ranks, depths, tokens = (np.array([value]) for value in (-1, 0, 0, token))
        return cls(parents, ranks, depths, tokens, np.ones(1), np.ones(1), np.array([-1]), np.array([0]))

    @property
    def size(self) -> int:
        return len(self.parents)

    def best(self, limit: int) -> Nodes:
        """Return the nodes of largest score, largest first; children come after their parents."""
        return self.taken(np.argsort(-self.scores, kind="stable")[:limit])

    def taken(self, order: np.ndarray) -> Nodes:
        """Return some nodes in a new order, int64 [m], each after its parent."""
        new = np.full(self.size, -1)
        new[order] = np.arange(len(order))
        kept = Nodes(*(column[order] for column in self))
        kept.parents[1:] = new[kept.parents[1:]]
        return kept

    def first(self, count: int) -> Nodes:
        return Nodes(*(column[:count] for column in self))

    def with_children(
        self, frontier: np.ndarray, chosen: np.ndarray, tokens: np.ndarray, probs: np.ndarray, scores: np.ndarray
    ) -> Nodes:
        """Add the chosen ones, bool [w, k], of row i as children of node `frontier[i]`, int64 [w]."""
        parents = frontier[np.nonzero(chosen)[0]]
        added = (
            parents, np.cumsum(chosen, axis=1)[chosen], self.depths[parents] + 1, tokens[chosen], probs[chosen],
            scores[chosen], np.full(len(parents), -1), np.zeros_like(parents),
        )  # fmt: skip
        return Nodes(*map(np.concatenate, zip(self, added, strict=True)))

    def as_tree(self) -> tuple[TokenTree, Nodes]:
        """Return the tree, and its nodes numbered as it has them."""
        tree, order = TokenTree.from_links(self.parents, self.ranks)
        return tree, Nodes(tree.parents.astype(np.int64), *(column[order] for column in self[1:]))


class Rows(Protocol):
    """The draft's rows after the nodes of a frontier."""

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k most likely tokens of each row, int64 [w, k], and their probabilities, float64 [w, k]."""
        ...

    def drawn(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Draw k tokens of each row, at most all, as the verifier asks for them; shapes as for `most_likely`.

        After the looked-up tokens `seen`, the first is drawn from what top-p leaves of the others.
        """
        ...

    def given(self, row: int, tokens: np.ndarray) -> np.ndarray:
        """Return the probabilities of tokens int64 [c] in one row, float64 [c]."""
        ...


class DraftChances:
    """Takes the draft's own probability as the chance of its most likely tokens; stands where `ChanceTables` can."""

    values, gain = None, 1.0

    def most_likely(self, probs: np.ndarray) -> np.ndarray:
        return probs

    def of_tokens(self, best: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> np.ndarray:
        return probs


class TokenCosts(NamedTuple):
    """Costs of the parts of a step, in tokens that the run commits in the same time.

    Attributes:
        step: float64 [max_size + 1], a step of n nodes without its draft passes; entry 0 is unused.
        draft: float64 [beam + 1], a draft pass over w nodes; entry 0 is 0.
    """

    step: np.ndarray
    draft: np.ndarray


def best_draws(
    gains: np.ndarray, size: int, *, max_size: int, costs: TokenCosts | None, threshold: float
) -> tuple[float, float]:
    """Return what the best number of nodes more gains beyond its cost, and the least gain among them (inf for none).

    `gains` are of the nodes that may be added to `size` nodes; each has to be above the threshold.
    """
    gains = -np.sort(-gains)[: max_size - size]
    gains = gains[gains > threshold]
    step = np.zeros(max_size + 1) if costs is None else costs.step
    values = np.cumsum(gains) - (step[size + 1 : size + 1 + len(gains)] - step[size])
    if len(values) == 0 or values.max() <= 0.0:
        return 0.0, np.inf
    best = int(values.argmax())
    return float(values[best]), float(gains[best])


def worth_verifying(scores: np.ndarray, step: np.ndarray) -> int:
    """Return how many of the likeliest nodes are worth what verifying them costs.

    `scores` float64 [n] fall from the root's 1; `step` float64 [N + 1] is the cost of n nodes in tokens.
    """
    return int((np.cumsum(scores) - step[1 : len(scores) + 1]).argmax()) + 1


def best_width(net_gain: Callable[[int], float], most: int) -> int:
    """Return how many of the most promising nodes to read in the next pass: 0, all, or a power of two between."""
    widths = [0, *(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    return max(widths, key=net_gain)  # of equal gains the smallest width


def largest_left(drawn: np.ndarray, best_tokens: np.ndarray, best_probs: np.ndarray) -> np.ndarray:
    """Return the largest probability not drawn before each rank, float64 [w, k]; all arguments are [w, k or more]."""
    same = drawn[:, :, None] == best_tokens[:, None, :]
    before = np.cumsum(same, axis=1) - same > 0
    return np.where(before, 0.0, best_probs[:, None, :]).max(axis=2)
