"""How one step's tree grows where the draft model and text already seen both propose; every place goes to the likelier.

A step begins with the likeliest continuations by text already seen. The draft model reads the nodes after which another
token is likeliest, with their ancestors, while that is expected to add more than the pass costs. What it says of a
looked-up token changes that token's chance, and below each token that it adds text is looked up again. Two recipes keep
the output exact, and each is a class here: `HybridExpansion` adds the draft's most likely tokens, `InTurnExpansion`
draws from what its row has besides the looked-up ones. `native/tree_expansion.c` does the same number for number:
change both. Knows no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...design.calibration import ChanceTables
from ...native.text_index import TreeColumns
from ..dynamic.expansion import (
    Nodes,
    Rows,
    TokenCosts,
    TreeBounds,
    best_draws,
    best_width,
    largest_left,
    worth_verifying,
)
from .text_index import LEAST_SCORE, RunningText

# How likely a token is that text already seen gives chance a, and the draft chance b, as log-odds:
# BOTH[0] + BOTH[1] logit(a) + BOTH[2] logit(b). One that was not looked up beside others with chances of A in all:
# BESIDE[0] log(1 - A) + BESIDE[1] logit(b). Fitted to 200,000 proposed tokens along the demo target's answers, with own
# text and earlier answers, at temperatures 0 and 0.6: on as many others 12 % less log loss than the larger of a and b.
BOTH = (1.35, 0.72, 0.55)
BESIDE = (0.9, 0.92)
FEWEST, MOST_SURE = 1e-3, 0.98  # chances are kept from 0 and 1 by this; looked-up chances in all are counted up to this


def likely_by_both(looked_up: float, drafted: float) -> float:
    """Return the chance of a token that text already seen and the draft both speak of, from what each gives it."""
    return _of_log_odds(BOTH[0] + BOTH[1] * _log_odds(looked_up) + BOTH[2] * _log_odds(drafted))


def likely_beside(looked_up: float, drafted: float) -> float:
    """Return the chance of a token by the draft alone, beside others whose looked-up chances sum to `looked_up`."""
    if looked_up <= 0.0:
        return drafted
    return _of_log_odds(BESIDE[0] * math.log(1.0 - min(looked_up, MOST_SURE)) + BESIDE[1] * _log_odds(drafted))


def _log_odds(chance: float) -> float:
    kept = min(max(chance, FEWEST), 1.0 - FEWEST)
    return math.log(kept / (1.0 - kept))


def _of_log_odds(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


@dataclass(frozen=True, slots=True)
class HybridExpansion:
    """Grows one step's tree from looked-up nodes and the draft's most likely tokens; an `ExpansionPolicy`.

    All is chosen before the target draws, so the top-k rule is exact.

    Args:
        chances: of the draft's most likely tokens.
        expected: float64 [k], that chance by rank where nothing is known of the row.
        token_costs: None spends the whole budget.
        text: the text under way and the index behind it.
        columns: buffers for nodes, `max_size + beam * branch` and as many again as `max_size`.
    """

    bounds: TreeBounds
    chances: ChanceTables
    expected: np.ndarray
    token_costs: TokenCosts | None
    text: RunningText
    columns: TreeColumns

    @property
    def least_other(self) -> float:
        """The chance of another token after a node than those below it, above which the draft may read the node."""
        return 0.0

    def start(self, token: int) -> Nodes:
        """Return the looked-up nodes that a step begins with, the likeliest first."""
        self.columns.state.max_size, self.columns.state.least = self.bounds.max_size, LEAST_SCORE
        size = self.text.grow(self.columns)
        return self._nodes(size, np.full(size, -1), np.append(0, np.ones(size - 1, np.int64)))

    def frontier(self, nodes: Nodes) -> np.ndarray:
        """Return the nodes after which a token other than those below is likeliest, with their unread ancestors."""
        other = nodes.scores - np.bincount(nodes.parents[1:], nodes.scores[1:], nodes.size)
        unread = (nodes.cache_positions < 0) & (nodes.depths < self.bounds.max_depth) & (other > self.least_other)
        if nodes.cache_positions[0] < 0:
            unread[1:] = False  # the root's pass also reads what was committed
        wanted = np.flatnonzero(unread)
        frontiers = [np.empty(0, np.int64)]
        for node in wanted[np.argsort(-other[wanted], kind="stable")].tolist():
            path = set(frontiers[-1].tolist())
            while node >= 0 and nodes.cache_positions[node] < 0:
                path.add(node)
                node = int(nodes.parents[node])
            if len(path) > self.bounds.beam:
                break
            frontiers.append(np.array(sorted(path)))
        costs = self.token_costs
        if costs is None:
            return frontiers[-1]

        def net_gain(count: int) -> float:
            expected = np.outer(other[frontiers[count]], self.expected).ravel()
            scores = -np.sort(-np.concatenate([nodes.scores, expected]))[: self.bounds.max_size]
            cost = costs.draft[len(frontiers[count])]
            return float((np.cumsum(scores) - costs.step[1 : len(scores) + 1]).max()) - cost

        return frontiers[best_width(net_gain, len(frontiers) - 1)]

    def extended(self, nodes: Nodes, frontier: np.ndarray, rows: Rows) -> Nodes:
        tokens, probs = rows.most_likely(self.bounds.branch)
        drafted = self.chances.most_likely(probs)
        row_of = dict(zip(frontier.tolist(), range(len(frontier)), strict=True))
        shares = _shares(nodes)
        added: list[tuple[int, int, float, float]] = []  # parent, token, probability, chance
        for node, row in sorted(row_of.items()):
            below = np.flatnonzero(nodes.parents == node)
            looked_up, both = self._weighed(nodes, below, shares[below], tokens[row], rows, row)
            fresh = ~np.isin(tokens[row], nodes.tokens[below])
            alone = _beside(looked_up, drafted[row][fresh])
            total = max(1.0, _total(both) + _total(alone))
            shares[below] = np.array(both) / total
            columns = tokens[row][fresh].tolist(), probs[row][fresh].tolist()
            added += [(node, *child, chance / total) for *child, chance in zip(*columns, alone, strict=True)]
        nodes = _scored(nodes, shares)
        scores = np.concatenate([nodes.scores, [nodes.scores[child[0]] * child[3] for child in added]])
        ranked, most = -np.sort(-scores), self.bounds.max_size
        full = float(ranked[most - 1]) if len(ranked) >= most else 0.0  # what it takes to be kept
        return self._looked_up_below(nodes, added, full).best(most)

    def kept(self, nodes: Nodes) -> Nodes:
        if self.token_costs is not None:
            nodes = nodes.first(worth_verifying(nodes.scores, self.token_costs.step))
        return nodes._replace(ranks=np.append(0, np.arange(1, nodes.size)))  # siblings in the order of their chances

    def _weighed(
        self, nodes: Nodes, below: np.ndarray, shares: np.ndarray, best: np.ndarray, rows: Rows, row: int
    ) -> tuple[float, list[float]]:
        """Note what the draft gives the looked-up children of a node.

        Args:
            below, shares: int64 and float64 [c], the children and their chances after it by text already seen.
            best: int64 [k], the draft's most likely tokens after it.

        Returns:
            The sum of those chances, and the chance of each by both sources.
        """
        seen, looked_up = nodes.tokens[below], (shares / self.columns.state.gain).tolist()
        nodes.probs[below] = given = rows.given(row, seen)
        by_draft = self.chances.of_tokens(best, seen, given).tolist()
        return _total(looked_up), [likely_by_both(*pair) for pair in zip(looked_up, by_draft, strict=True)]

    def _looked_up_below(self, nodes: Nodes, added: list[tuple[int, int, float, float]], least: float) -> Nodes:
        """Return the nodes with the children that the draft added, and below these what followed such text before.

        Args:
            added: parent, token, probability and chance after the parent of each child.
            least: the score that looked-up nodes have at least.
        """
        columns, old = self.columns.columns, nodes.size
        size = old + len(added)
        for name in ("parents", "depths", "tokens", "probs", "scores"):
            columns[name][:old] = getattr(nodes, name)
        for place, (parent, token, prob, chance) in enumerate(added, start=old):
            columns["parents"][place], columns["tokens"][place] = parent, token
            columns["depths"][place], columns["probs"][place] = nodes.depths[parent] + 1, prob
            columns["scores"][place] = nodes.scores[parent] * chance
        state = self.columns.state
        state.max_size, state.least = size + self.bounds.max_size, max(LEAST_SCORE, least)
        grown = self.text.grow(self.columns, size, old)
        looked_up = np.concatenate([nodes.looked_up, np.repeat((0, 1), (size - old, grown - size))])
        return self._nodes(grown, np.append(nodes.cache_positions, np.full(grown - old, -1)), looked_up)

    def _nodes(self, size: int, cache_positions: np.ndarray, looked_up: np.ndarray) -> Nodes:
        columns = [
            self.columns.columns[name][:size].copy() for name in ("parents", "depths", "tokens", "probs", "scores")
        ]
        parents, depths, tokens, probs, scores = columns
        return Nodes(parents, np.arange(size), depths, tokens, probs, scores, cache_positions, looked_up)


@dataclass(frozen=True, slots=True)
class InTurnExpansion(HybridExpansion):
    """Grows one step's tree from looked-up nodes and children drawn from the draft's rows; an `ExpansionPolicy`.

    A node's looked-up children are chosen before any is drawn there. Then tokens besides theirs are drawn from the
    draft's row, and whether to draw once more is decided before that token is known. So no draw changes the order or
    the number of those proposed before it, and `verifiers.sequoia_rule` is exact. From then on the node's children
    stay; looked-up nodes below a node that was not read may still be left out.

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
        nodes, places = _without(nodes, fresh, least, most - size)
        below = [np.flatnonzero(nodes.parents == (node if node >= 0 else -2)) for node in places[frontier].tolist()]
        for children in below:
            nodes.ranks[children] = 1 + np.argsort(np.argsort(-nodes.scores[children], kind="stable"), kind="stable")
        # What is drawn besides looked-up tokens follows the row without them, so they are drawn too and left out.
        tokens, probs = rows.drawn(ranks + max(map(len, below)))
        added: list[tuple[int, int, float, float]] = []
        added_ranks: list[int] = []
        room = most - size - sum(map(len, below))
        for row, node in enumerate(places[frontier].tolist()):
            if node < 0:
                continue
            seen, read = nodes.tokens[below[row]], reads[row]
            new = np.flatnonzero(~np.isin(tokens[row], seen))[:ranks]
            left = 1.0 - _total(nodes.probs[below[row]].tolist()) - (np.cumsum(probs[row][new]) - probs[row][new])
            others = np.where(np.isin(best[row], seen), 0.0, best_probs[row])
            largest = largest_left(tokens[row][new][None], best[row][None], others[None])
            before = np.array(_beside(read.looked_up, self.chances.before(left[None], largest)[0])) / read.total
            going = np.logical_and.accumulate(nodes.scores[node] * before >= least)
            count = min(int(going.sum()), max(room, 0))
            room -= count
            after = np.array(_beside(read.looked_up, self.chances.after(probs[row][new][None])[0])) / read.total
            columns = (tokens[row][new], probs[row][new], after)
            added += [(node, *child) for child in zip(*(column[:count].tolist() for column in columns), strict=True)]
            added_ranks += range(len(below[row]) + 1, len(below[row]) + count + 1)
        grown = self._looked_up_below(nodes, added, self.threshold)
        anew = np.zeros(grown.size - nodes.size - len(added), np.int64)
        grown = grown._replace(ranks=np.concatenate([nodes.ranks, added_ranks, anew]).astype(np.int64))
        return grown.taken(np.lexsort((-grown.scores, ~_settled(grown)))[:most])

    def _read(
        self, nodes: Nodes, frontier: np.ndarray, rows: Rows, best: np.ndarray, best_probs: np.ndarray
    ) -> tuple[Nodes, list[_Read]]:
        """Return the nodes with what the rows say of looked-up children, and what draws after each row promise."""
        shares, found = _shares(nodes), []
        for row, node in enumerate(frontier.tolist()):
            below = np.flatnonzero(nodes.parents == node)
            looked_up, both = self._weighed(nodes, below, shares[below], best[row], rows, row)
            probs = best_probs[row][~np.isin(best[row], nodes.tokens[below])]
            left = 1.0 - _total(nodes.probs[below].tolist()) - (np.cumsum(probs) - probs)
            alone = np.array(
                _beside(looked_up, self.chances.before(left[None], probs[None])[0] if len(probs) else probs)
            )
            total = max(1.0, _total(both) + _total(alone.tolist()))
            shares[below] = np.array(both) / total
            found.append(_Read(looked_up, total, alone / total))
        nodes = _scored(nodes, shares)
        reach = nodes.scores[frontier].tolist()
        gains = [np.minimum.accumulate(own * read.gains) for own, read in zip(reach, found, strict=True)]
        return nodes, [read._replace(gains=gain) for read, gain in zip(found, gains, strict=True)]

    def kept(self, nodes: Nodes) -> Nodes:
        settled, count = _settled(nodes), nodes.size
        if self.token_costs is not None:
            least = int(settled.sum())
            values = np.cumsum(nodes.scores) - self.token_costs.step[1 : count + 1]
            count = least + int(values[least - 1 :].argmax())
        return nodes._replace(ranks=np.where(settled, nodes.ranks, np.arange(nodes.size))).first(count)


class _Read(NamedTuple):
    """What the draft's row after a node says of draws there.

    Attributes:
        looked_up: the chances of the node's looked-up children by text alone, summed.
        total: what chances are divided by, so that they sum to no more than 1.
        gains: float64 [k], what each of the next draws is expected to add, as if the most likely tokens were drawn.
    """

    looked_up: float
    total: float
    gains: np.ndarray


def _settled(nodes: Nodes) -> np.ndarray:
    """Return which nodes stay, bool [n]: those whose parent was read, among whose siblings tokens may be drawn."""
    return np.append(True, nodes.cache_positions[nodes.parents[1:]] >= 0)


def _without(nodes: Nodes, fresh: np.ndarray, least: float, most: int) -> tuple[Nodes, np.ndarray]:
    """Leave out the looked-up children of a pass that gain too little, with all below them.

    Args:
        fresh: bool [n], those children.
        least, most: what each must gain, and how many may stay.

    Returns:
        The nodes left, and the new place of every old one, int64 [n], -1 for none.
    """
    wanted = np.flatnonzero(fresh & (nodes.scores >= least))
    stay = ~fresh
    stay[wanted[np.argsort(-nodes.scores[wanted], kind="stable")][:most]] = True
    for node in range(1, nodes.size):  # parents before their children
        stay[node] &= stay[nodes.parents[node]]
    return nodes.taken(np.flatnonzero(stay)), np.where(stay, np.cumsum(stay) - 1, -1)


def _shares(nodes: Nodes) -> np.ndarray:
    """Return the chance of each node after its parent, float64 [n]."""
    return nodes.scores / np.append(1.0, nodes.scores[nodes.parents[1:]])


def _scored(nodes: Nodes, shares: np.ndarray) -> Nodes:
    """Return the nodes with the scores that follow from their chances after their parents, float64 [n]."""
    scores = nodes.scores.copy()
    for node in range(1, nodes.size):  # parents before their children
        scores[node] = scores[nodes.parents[node]] * shares[node]
    return nodes._replace(scores=scores)


def _beside(looked_up: float, drafted: np.ndarray) -> list[float]:
    return [likely_beside(looked_up, chance) for chance in drafted.tolist()]


def _total(values: list[float]) -> float:
    """Return the sum, added up in order: `sum` and NumPy round otherwise, and compiled code must agree."""
    total = 0.0
    for value in values:
        total += value
    return total
