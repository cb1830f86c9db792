"""How one step's tree grows where the draft model and text already seen both propose.

A step begins with the likeliest continuations by text already seen. The draft model reads the nodes after which another
token is likeliest; below each token that it adds text is looked up again. `native/tree_expansion.c` does the same
number for number: change both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...design.calibration import ChanceTables
from ...native.text_index import TreeColumns
from .expansion import Nodes, Rows, TokenCosts, TreeBounds, best_width, worth_verifying
from .text_index import LEAST_SCORE, RunningText

# Log-odds of a token that text already seen gives chance a, and the draft b: 1.35 + 0.72 logit(a) + 0.55 logit(b).
# Of one that was not looked up, beside others with chances of A in all: 0.9 log(1 - A) + 0.92 logit(b).
# Fitted to 200,000 proposed tokens along the demo target's answers, with own text and earlier answers, at temperatures
# 0 and 0.6: on as many others 12 % less log loss than the larger of a and b.
BOTH_WEIGHTS = (1.35, 0.72, 0.55)
BESIDE_WEIGHTS = (0.9, 0.92)
MIN_CHANCE = 1e-3  # chances are kept from 0 and 1 by this
MAX_TOTAL_LOOKUP_CHANCE = 0.98


def likely_by_both(looked_up: float, drafted: float) -> float:
    """Return the chance of a token that text already seen and the draft both propose."""
    base, by_text, by_draft = BOTH_WEIGHTS
    return _of_log_odds(base + by_text * _log_odds(looked_up) + by_draft * _log_odds(drafted))


def likely_beside(looked_up: float, drafted: float) -> float:
    """Return the chance of a token by the draft alone, beside others whose looked-up chances sum to `looked_up`."""
    if looked_up <= 0.0:
        return drafted
    by_text, by_draft = BESIDE_WEIGHTS
    others = math.log(1.0 - min(looked_up, MAX_TOTAL_LOOKUP_CHANCE))
    return _of_log_odds(by_text * others + by_draft * _log_odds(drafted))


def _log_odds(chance: float) -> float:
    kept = min(max(chance, MIN_CHANCE), 1.0 - MIN_CHANCE)
    return math.log(kept / (1.0 - kept))


def _of_log_odds(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


@dataclass(frozen=True, slots=True)
class HybridExpansion:
    """Grows one step's tree from looked-up nodes and the draft's most likely tokens; an `ExpansionPolicy`.

    All is chosen before the target draws, so the top-k rule is exact.

    Args:
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
        """The least chance of another token after a node for which the draft may read the node."""
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
        shares = shares_of(nodes)
        added: list[tuple[int, int, float, float]] = []  # parent, token, probability, chance
        for node, row in sorted(row_of.items()):
            below = np.flatnonzero(nodes.parents == node)
            looked_up, both = self.weighed(nodes, below, shares[below], tokens[row], rows, row)
            fresh = ~np.isin(tokens[row], nodes.tokens[below])
            alone = beside(looked_up, drafted[row][fresh])
            total = max(1.0, total_of(both) + total_of(alone))
            shares[below] = np.array(both) / total
            columns = tokens[row][fresh].tolist(), probs[row][fresh].tolist()
            added += [(node, *child, chance / total) for *child, chance in zip(*columns, alone, strict=True)]
        nodes = scored(nodes, shares)
        scores = np.concatenate([nodes.scores, [nodes.scores[child[0]] * child[3] for child in added]])
        ranked, most = -np.sort(-scores), self.bounds.max_size
        full = float(ranked[most - 1]) if len(ranked) >= most else 0.0  # what it takes to be kept
        return self.looked_up_below(nodes, added, full).best(most)

    def kept(self, nodes: Nodes) -> Nodes:
        if self.token_costs is not None:
            nodes = nodes.first(worth_verifying(nodes.scores, self.token_costs.step))
        return nodes._replace(ranks=np.append(0, np.arange(1, nodes.size)))  # siblings in the order of their chances

    def weighed(
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
        return total_of(looked_up), [likely_by_both(*pair) for pair in zip(looked_up, by_draft, strict=True)]

    def looked_up_below(self, nodes: Nodes, added: list[tuple[int, int, float, float]], least: float) -> Nodes:
        """Return the nodes with the children that the draft added, and below these what followed such text before.

        `added` has parent, token, probability and chance after the parent; looked-up nodes score `least` or more.
        """
        columns, old = self.columns.columns, nodes.size
        size = old + len(added)
        for name in ("parents", "depths", "tokens", "probs", "scores"):
            columns[name][:old] = getattr(nodes, name)
        for index, (parent, token, prob, chance) in enumerate(added, start=old):
            columns["parents"][index], columns["tokens"][index] = parent, token
            columns["depths"][index], columns["probs"][index] = nodes.depths[parent] + 1, prob
            columns["scores"][index] = nodes.scores[parent] * chance
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


def shares_of(nodes: Nodes) -> np.ndarray:
    """Return the chance of each node after its parent, float64 [n]."""
    return nodes.scores / np.append(1.0, nodes.scores[nodes.parents[1:]])


def scored(nodes: Nodes, shares: np.ndarray) -> Nodes:
    """Return the nodes with the scores that follow from their chances after their parents, float64 [n]."""
    scores = nodes.scores.copy()
    for node in range(1, nodes.size):  # parents before their children
        scores[node] = scores[nodes.parents[node]] * shares[node]
    return nodes._replace(scores=scores)


def beside(looked_up: float, drafted: np.ndarray) -> list[float]:
    """Return `likely_beside` for many tokens, float64 [k]."""
    return [likely_beside(looked_up, chance) for chance in drafted.tolist()]


def total_of(values: list[float]) -> float:
    """Return the sum, added up in order: `sum` and NumPy round otherwise, and compiled code must agree."""
    total = 0.0
    for value in values:
        total += value
    return total
