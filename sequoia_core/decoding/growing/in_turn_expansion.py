"""How one step's tree grows from looked-up nodes and children drawn from the draft's rows.

`native/tree_expansion.c` does the same number for number: change both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .expansion import Nodes, Rows, best_draws, largest_left
from .hybrid_expansion import HybridExpansion, beside, scored, shares_of, total_of


@dataclass(frozen=True, slots=True)
class InTurnExpansion(HybridExpansion):
    """Grows one step's tree from looked-up nodes and children drawn from the draft's rows; an `ExpansionPolicy`.

    A node's looked-up children are chosen before any is drawn there. Then tokens besides theirs are drawn from the
    draft's row, and whether to draw once more is decided before that token is known. So no draw changes the order or
    the number of those proposed before it, and `verifiers.sequoia_rule` is exact.

    Args:
        expected: float64 [k], the chance of a drawn child by rank where nothing is known of the row.
        threshold: the least gain of a draw, so that a budget lasts to the deeper levels.
    """

    threshold: float = 0.0

    @property
    def least_other(self) -> float:
        largest = float(self.expected.max())
        return self.threshold / largest if largest > 0.0 else math.inf

    def frontier(self, nodes: Nodes) -> np.ndarray:
        if _settled(nodes).sum() >= self.bounds.max_size:
            return np.empty(0, np.int64)
        return HybridExpansion.frontier(self, nodes)  # slots=True creates a new class, which super() does not know

    def extended(self, nodes: Nodes, frontier: np.ndarray, rows: Rows) -> Nodes:
        best, best_probs = rows.most_likely(self.bounds.branch)
        nodes, reads = self._read(nodes, frontier, rows, best, best_probs)
        fresh = np.isin(nodes.parents, frontier)  # settled in this pass
        settled, most = _settled(nodes) & ~fresh, self.bounds.max_size
        gains = np.concatenate([nodes.scores[~settled], *(read.gains for read in reads)])
        size = int(settled.sum())
        least = best_draws(gains, size, max_size=most, costs=self.token_costs, threshold=self.threshold)[1]
        ranks = min(max(int((read.gains >= least).sum()) for read in reads) + 1, self.bounds.branch)
        nodes, moved = _without(nodes, fresh, least, most - size)
        below = [np.flatnonzero(nodes.parents == (node if node >= 0 else -2)) for node in moved[frontier].tolist()]
        for children in below:
            nodes.ranks[children] = 1 + np.argsort(np.argsort(-nodes.scores[children], kind="stable"), kind="stable")
        # What is drawn besides looked-up tokens follows the row without them, so they are drawn too and left out.
        tokens, probs = rows.drawn(ranks + max(map(len, below)), [nodes.tokens[children] for children in below])
        added: list[tuple[int, int, float, float]] = []
        added_ranks: list[int] = []
        room = most - size - sum(map(len, below))
        for row, node in enumerate(moved[frontier].tolist()):
            if node < 0:
                continue
            seen, offered = nodes.tokens[below[row]], _Offered(tokens[row], probs[row], best[row], best_probs[row])
            new, gains, chances = self._draws(offered, seen, nodes.probs[below[row]], reads[row], ranks)
            going = np.logical_and.accumulate(nodes.scores[node] * gains >= least)
            count = min(int(going.sum()), max(room, 0))
            room -= count
            columns = tokens[row][new], probs[row][new], chances
            added += [(node, *child) for child in zip(*(column[:count].tolist() for column in columns), strict=True)]
            added_ranks += range(len(below[row]) + 1, len(below[row]) + count + 1)
        grown = self.looked_up_below(nodes, added, self.threshold)
        anew = np.zeros(grown.size - nodes.size - len(added), np.int64)
        grown = grown._replace(ranks=np.concatenate([nodes.ranks, added_ranks, anew]).astype(np.int64))
        return grown.taken(np.lexsort((-grown.scores, ~_settled(grown)))[:most])

    def _draws(
        self, offered: _Offered, seen: np.ndarray, given: np.ndarray, read: _Read, ranks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weigh the tokens that were drawn after a node.

        Args:
            seen, given: int64 and float64 [c], its looked-up children's tokens and what the draft gives them.

        Returns:
            Indices [k] of the draws that are not looked-up tokens; the chance of each, float64 [k], before its token is
            known; and after that.
        """
        new = np.flatnonzero(~np.isin(offered.tokens, seen))[:ranks]
        tokens, probs = offered.tokens[new], offered.probs[new]
        left = 1.0 - total_of(given.tolist()) - (np.cumsum(probs) - probs)
        others = np.where(np.isin(offered.best, seen), 0.0, offered.best_probs)
        largest = largest_left(tokens[None], offered.best[None], others[None])
        if not len(new):
            return new, probs, probs
        before = beside(read.looked_up, self.chances.before(left[None], largest)[0])
        after = beside(read.looked_up, self.chances.after(probs[None])[0])
        return new, np.array(before) / read.total, np.array(after) / read.total

    def _read(
        self, nodes: Nodes, frontier: np.ndarray, rows: Rows, best: np.ndarray, best_probs: np.ndarray
    ) -> tuple[Nodes, list[_Read]]:
        """Return the nodes with what the rows say of looked-up children, and what draws after each row promise."""
        shares, reads = shares_of(nodes), []
        for row, node in enumerate(frontier.tolist()):
            below = np.flatnonzero(nodes.parents == node)
            looked_up, both = self.weighed(nodes, below, shares[below], best[row], rows, row)
            probs = best_probs[row][~np.isin(best[row], nodes.tokens[below])]
            left = 1.0 - total_of(nodes.probs[below].tolist()) - (np.cumsum(probs) - probs)
            alone = np.array(
                beside(looked_up, self.chances.before(left[None], probs[None])[0] if len(probs) else probs)
            )
            total = max(1.0, total_of(both) + total_of(alone.tolist()))
            shares[below] = np.array(both) / total
            reads.append(_Read(looked_up, total, alone / total))
        nodes = scored(nodes, shares)
        reach = nodes.scores[frontier].tolist()
        gains = [np.minimum.accumulate(own * read.gains) for own, read in zip(reach, reads, strict=True)]
        return nodes, [read._replace(gains=gain) for read, gain in zip(reads, gains, strict=True)]

    def kept(self, nodes: Nodes) -> Nodes:
        settled, count = _settled(nodes), nodes.size
        if self.token_costs is not None:
            least = int(settled.sum())
            values = np.cumsum(nodes.scores) - self.token_costs.step[1 : count + 1]
            count = least + int(values[least - 1 :].argmax())
        return nodes._replace(ranks=np.where(settled, nodes.ranks, np.arange(nodes.size))).first(count)


class _Offered(NamedTuple):
    """The tokens drawn after a node with their probabilities [k], and the draft's most likely ones [b]."""

    tokens: np.ndarray
    probs: np.ndarray
    best: np.ndarray
    best_probs: np.ndarray


class _Read(NamedTuple):
    """What the draft's row after a node says of draws there.

    Attributes:
        looked_up: the chances of the node's looked-up children by text alone, summed.
        total: divides chances, so that they sum to no more than 1.
        gains: float64 [k], what each of the next draws is expected to add, as if the most likely tokens were drawn.
    """

    looked_up: float
    total: float
    gains: np.ndarray


def _settled(nodes: Nodes) -> np.ndarray:
    """Return which nodes stay, bool [n]: those whose parent was read, among whose siblings tokens may be drawn."""
    return np.append(True, nodes.cache_positions[nodes.parents[1:]] >= 0)


def _without(nodes: Nodes, fresh: np.ndarray, least: float, most: int) -> tuple[Nodes, np.ndarray]:
    """Leave out `fresh` children, bool [n], that gain too little, and all below; return each node's new index or -1."""
    wanted = np.flatnonzero(fresh & (nodes.scores >= least))
    stay = ~fresh
    stay[wanted[np.argsort(-nodes.scores[wanted], kind="stable")][:most]] = True
    for node in range(1, nodes.size):  # parents before their children
        stay[node] &= stay[nodes.parents[node]]
    return nodes.taken(np.flatnonzero(stay)), np.where(stay, np.cumsum(stay) - 1, -1)
