"""How one step's tree grows from children drawn from the draft's rows, and from looked-up ones where there is text.

`native/tree_expansion.c` does the same number for number: change both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ...design.calibration import ChanceTables
from .expansion import Nodes, Rows, TokenCosts, best_draws, largest_left
from .running_lookup import beside, scored, shares_of, total_of
from .top_k_expansion import TopKExpansion


@dataclass(frozen=True, slots=True)
class SampledExpansion(TopKExpansion):
    """Draws children without replacement; whether to draw one more is decided before its token is known.

    Where text is looked up, a node's looked-up children are chosen before any is drawn there, and what is drawn are
    tokens besides theirs. So no draw changes the order or the number of those proposed before it, and
    `verifiers.sequoia_rule` is exact.

    Args:
        chances: of the next token, which decide on its draw; of drawn tokens, which decide only what grows below them.
        expected: float64 [k], the chance of a drawn child by rank where nothing is known of the row.
        token_costs: None counts no costs; then only the threshold limits draws.
        threshold: the least gain of a draw, so that a budget lasts to the deeper levels.
    """

    draws: ClassVar[bool] = True

    chances: ChanceTables
    threshold: float = 0.0

    def frontier(self, nodes: Nodes) -> np.ndarray:
        if _settled(nodes).sum() >= self.bounds.max_size:
            return np.empty(0, np.int64)
        return TopKExpansion.frontier(self, nodes)  # slots=True creates a new class, which super() does not know

    def worth_reading(self, others: np.ndarray) -> np.ndarray:
        return others * self.expected.max() > self.threshold

    def net_gain(self, nodes: Nodes, expected: np.ndarray, costs: TokenCosts) -> float:
        if self.look_up is None:
            return self._best_draws(nodes.size, expected)[0]
        return TopKExpansion.net_gain(self, nodes, expected, costs)

    def extended(self, nodes: Nodes, frontier: np.ndarray, rows: Rows) -> Nodes:
        best, best_probs = rows.most_likely(self.bounds.branch)
        if self.look_up is not None:
            return self._extended_beside_text(nodes, frontier, rows, best, best_probs)
        reach = nodes.scores[frontier, None]
        # The least gain that one more child must have, from the rows alone: as if the most likely tokens were drawn.
        left = 1.0 - (np.cumsum(best_probs, axis=1) - best_probs)
        planned = np.minimum.accumulate(reach * self.chances.before(left, best_probs), axis=1)
        least_gain = self._best_draws(nodes.size, planned.ravel())[1]
        ranks = min(int((planned >= least_gain).sum(axis=1).max()) + 1, self.bounds.branch)
        tokens, probs = rows.drawn(ranks)
        # Each rank is decided by the tokens drawn before it; tokens of later ranks are drawn already, but not used.
        left = 1.0 - (np.cumsum(probs, axis=1) - probs)
        largest = largest_left(tokens, best, best_probs)
        going = np.logical_and.accumulate(reach * self.chances.before(left, largest) >= least_gain, axis=1)
        going &= np.cumsum(going).reshape(going.shape) <= self.bounds.max_size - nodes.size
        return nodes.with_children(frontier, going, tokens, probs, reach * self.chances.after(probs))

    def kept(self, nodes: Nodes) -> Nodes:
        if self.look_up is None:
            return nodes
        settled, count = _settled(nodes), nodes.size
        if self.token_costs is not None:
            least = int(settled.sum())
            values = np.cumsum(nodes.scores) - self.token_costs.step[1 : count + 1]
            count = least + int(values[least - 1 :].argmax())
        return nodes._replace(ranks=np.where(settled, nodes.ranks, np.arange(nodes.size))).first(count)

    def _best_draws(self, size: int, gains: np.ndarray) -> tuple[float, float]:
        return best_draws(gains, size, max_size=self.bounds.max_size, costs=self.token_costs, threshold=self.threshold)

    def _extended_beside_text(
        self, nodes: Nodes, frontier: np.ndarray, rows: Rows, best: np.ndarray, best_probs: np.ndarray
    ) -> Nodes:
        assert self.look_up is not None
        nodes, reads = self._read(nodes, frontier, rows, best, best_probs)
        fresh = np.isin(nodes.parents, frontier)  # settled in this pass
        settled, most = _settled(nodes) & ~fresh, self.bounds.max_size
        gains = np.concatenate([nodes.scores[~settled], *(read.gains for read in reads)])
        size = int(settled.sum())
        least = self._best_draws(size, gains)[1]
        ranks = min(max(int((read.gains >= least).sum()) for read in reads) + 1, self.bounds.branch)
        nodes, moved = _without(nodes, fresh, least, most - size)
        below = [np.flatnonzero(nodes.parents == (node if node >= 0 else -2)) for node in moved[frontier].tolist()]
        for children in below:
            nodes.ranks[children] = 1 + np.argsort(np.argsort(-nodes.scores[children], kind="stable"), kind="stable")
        # What is drawn besides looked-up tokens follows the row without them, so they are drawn too and left out.
        tokens, probs = rows.drawn(ranks + max(map(len, below)), [nodes.tokens[children] for children in below])
        going, scores = np.zeros(tokens.shape, bool), np.zeros(tokens.shape)
        known = np.array([len(children) for children in below])
        room = most - size - int(known.sum())
        for row, node in enumerate(moved[frontier].tolist()):
            if node < 0:
                continue
            offered = _Offered(tokens[row], probs[row], best[row], best_probs[row])
            new, before, after = self._draws(offered, nodes, below[row], reads[row], ranks)
            count = int(np.logical_and.accumulate(nodes.scores[node] * before >= least).sum())
            new = new[: max(min(count, room), 0)]
            going[row, new], scores[row, new] = True, nodes.scores[node] * after[: len(new)]
            room -= len(new)
        grown = nodes.with_children(moved[frontier], going, tokens, probs, scores)
        grown.ranks[nodes.size :] += np.repeat(known, going.sum(axis=1))
        grown = self.look_up.below(grown, nodes.size, most, self.threshold)
        return grown.taken(np.lexsort((-grown.scores, ~_settled(grown)))[:most])

    def _draws(
        self, offered: _Offered, nodes: Nodes, below: np.ndarray, read: _Read, ranks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weigh the tokens that were drawn after a node; `below` are its looked-up children, int64 [c].

        Returns:
            Indices [k] of the draws that are not looked-up tokens; the chance of each, float64 [k], before its token is
            known; and after that.
        """
        seen = nodes.tokens[below]
        new = np.flatnonzero(~np.isin(offered.tokens, seen))[:ranks]
        tokens, probs = offered.tokens[new], offered.probs[new]
        if not len(new):
            return new, probs, probs
        left = 1.0 - total_of(nodes.probs[below].tolist()) - (np.cumsum(probs) - probs)
        others = np.where(np.isin(offered.best, seen), 0.0, offered.best_probs)
        largest = largest_left(tokens[None], offered.best[None], others[None])
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
            before = self.chances.before(left[None], probs[None])[0] if len(probs) else probs
            drafted = beside(looked_up, before)
            total = max(1.0, total_of(both) + total_of(drafted))
            shares[below] = np.array(both) / total
            reads.append(_Read(looked_up, total, np.array(drafted) / total))
        nodes = scored(nodes, shares)
        reach = nodes.scores[frontier].tolist()
        gains = [np.minimum.accumulate(own * read.gains) for own, read in zip(reach, reads, strict=True)]
        return nodes, [read._replace(gains=gain) for read, gain in zip(reads, gains, strict=True)]


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
