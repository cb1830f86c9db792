"""Expansion policies, which determine the nodes of a dynamic tree that are read next, and their children.

Shapes: n = nodes so far, w = nodes read in one draft pass (the frontier), k = ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sequoia_core.trees.tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBounds:
    """Limits for all trees of a run, or for the tree of one step.

    Args:
        max_size: maximum number of nodes, including the root.
        max_depth: maximum number of edges from the root, and of draft passes per step.
        beam: maximum number of nodes that one draft pass reads.
        branch: maximum number of children per node.
    """

    max_size: int
    max_depth: int
    beam: int
    branch: int

    def limit_depth(self, depth: int) -> TreeBounds:
        """Return these bounds with the maximum depth `depth`; at 0 the draft proposes nothing."""
        return TreeBounds(max_size=self.max_size, max_depth=depth, beam=self.beam, branch=self.branch)

    @property
    def max_read(self) -> int:
        """The maximum number of nodes that the draft reads in one step."""
        return 1 + (self.max_depth - 1) * self.beam


class Nodes(NamedTuple):
    """The nodes of one step's tree so far; the root comes first, and parents come before their children.

    Attributes:
        parents: int64 [n], parent indices; -1 for the root.
        ranks: int64 [n], order among siblings, beginning at 1; 0 for the root.
        depths, tokens: int64 [n].
        probs: float64 [n], the draft's probability of each token given its parent; 1 for the root.
        scores: float64 [n], the estimated probability that the node is accepted.
        cache_positions: int64 [n], positions in the draft's cache relative to the root's; -1 for unread nodes.
        looked_up: int64 [n], 1 for a node found in text before its parent was read, otherwise 0.
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
        """Return the nodes with the largest scores, in descending order."""
        return self.select(np.argsort(-self.scores, kind="stable")[:limit])

    def select(self, order: np.ndarray) -> Nodes:
        """Return the nodes with these indices, int64 [m], in this order; each must come after its parent."""
        new_index = np.full(self.size, -1)
        new_index[order] = np.arange(len(order))
        selected = Nodes(*(column[order] for column in self))
        selected.parents[1:] = new_index[selected.parents[1:]]
        return selected

    def first(self, count: int) -> Nodes:
        return Nodes(*(column[:count] for column in self))

    def extend(self, *columns: np.ndarray) -> Nodes:
        return Nodes(*map(np.concatenate, zip(self, columns, strict=True)))

    def with_children(
        self, frontier: np.ndarray, chosen: np.ndarray, tokens: np.ndarray, probs: np.ndarray, scores: np.ndarray
    ) -> Nodes:
        """Add the candidates marked in `chosen`, bool [w, k]; row i contains children of `frontier[i]`, int64 [w]."""
        parents = frontier[np.nonzero(chosen)[0]]
        return self.extend(
            parents,
            np.cumsum(chosen, axis=1)[chosen],
            self.depths[parents] + 1,
            tokens[chosen],
            probs[chosen],
            scores[chosen],
            np.full(len(parents), -1),
            np.zeros_like(parents),
        )

    def as_tree(self) -> tuple[TokenTree, Nodes]:
        """Return the tree, and these nodes in the tree's order."""
        tree, order = TokenTree.from_links(self.parents, self.ranks)
        return tree, Nodes(tree.parents.astype(np.int64), *(column[order] for column in self[1:]))


class FrontierRows(Protocol):
    """The draft's distributions after the nodes of a frontier."""

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k most likely tokens of each row, int64 [w, k], and their probabilities, float64 [w, k]."""
        ...

    def draw(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Draw k tokens per row, or all if there are fewer, as the verifier requires; shapes as for `most_likely`.

        If `seen` lists each row's looked-up tokens, the first token is drawn from the other tokens within top-p.
        """
        ...

    def probabilities(self, row: int, tokens: np.ndarray) -> np.ndarray:
        """Return the probabilities, float64 [c], of tokens, int64 [c], in one row."""
        ...


class DraftChances:
    """A substitute for `ChanceTables` that uses the draft's probabilities as acceptance probabilities."""

    values = None
    gain = 1.0

    def most_likely(self, probs: np.ndarray) -> np.ndarray:
        return probs

    def token_chances(self, best: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> np.ndarray:
        return probs


class TokenCosts(NamedTuple):
    """Costs of a step's parts, in units of the tokens that the run commits in the same time.

    Attributes:
        step: float64 [max_size + 1], cost of a step with n nodes without its draft passes; entry 0 is unused.
        draft: float64 [beam + 1], cost of a draft pass over w nodes; entry 0 is 0.
    """

    step: np.ndarray
    draft: np.ndarray


def best_draws(
    gains: np.ndarray, size: int, *, max_size: int, costs: TokenCosts | None, threshold: float
) -> tuple[float, float]:
    """Return the largest net gain that further nodes can add, and the smallest gain among these nodes (inf if none).

    `gains` are the gains of candidates for a tree of `size` nodes; only gains above the threshold count.
    """
    gains = -np.sort(-gains)[: max_size - size]
    gains = gains[gains > threshold]
    net = np.cumsum(gains)
    if costs is not None:
        net -= costs.step[size + 1 : size + 1 + len(gains)] - costs.step[size]
    if len(net) == 0 or net.max() <= 0.0:
        return 0.0, np.inf
    best = int(net.argmax())
    return float(net[best]), float(gains[best])


def count_worth_verifying(scores: np.ndarray, step: np.ndarray) -> int:
    """Return the number of nodes, likeliest first, that are worth the cost of verifying them.

    `scores`, float64 [n], are in descending order and begin with the root's 1; `step`, float64 [N + 1], contains the
    cost of n nodes in tokens.
    """
    return int((np.cumsum(scores) - step[1 : len(scores) + 1]).argmax()) + 1


def best_width(net_gain: Callable[[int], float], limit: int) -> int:
    """Return the number of nodes to read in the next pass: 0, `limit`, or a power of two in between."""
    widths = [0, *(1 << power for power in range(limit.bit_length()) if 1 << power < limit), limit]
    # If gains are equal, `max` returns the first and thus smallest width.
    return max(widths, key=net_gain)


def largest_undrawn(drawn: np.ndarray, best_tokens: np.ndarray, best_probs: np.ndarray) -> np.ndarray:
    """Return each rank's largest probability of a token not drawn before, float64 [w, k]; arguments [w, k or more]."""
    same = drawn[:, :, None] == best_tokens[:, None, :]
    before = np.cumsum(same, axis=1) - same > 0
    return np.where(before, 0.0, best_probs[:, None, :]).max(axis=2)
