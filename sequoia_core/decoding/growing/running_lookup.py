"""Nodes of one step's tree from text already seen, and what the draft model says of the same tokens."""

import math
from collections.abc import Sequence

import numpy as np

from ...native.text_index import TreeColumns
from .expansion import Nodes, TreeBounds
from .text_index import LEAST_SCORE, RunningText, TextIndex

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


class LookUp:
    """The text of one run, and buffers for the nodes that are looked up in it: the kept ones, and as many anew.

    Args:
        room: tokens that the text will have at most.
    """

    def __init__(self, index: TextIndex, room: int, bounds: TreeBounds) -> None:
        self.text = RunningText(index, room)
        self.columns = TreeColumns(
            max_size=2 * bounds.max_size + bounds.beam * bounds.branch, max_depth=bounds.max_depth,
            max_children=bounds.branch, least=LEAST_SCORE,
        )  # fmt: skip

    @property
    def addresses(self) -> tuple[int, int | None, int]:
        """Addresses of the text under way, of the index and of the buffers, for compiled code."""
        return *self.text.addresses, self.columns.address

    @property
    def gain(self) -> float:
        """What the chances of looked-up tokens are multiplied by."""
        return self.columns.state.gain

    def begin(self, sequence: Sequence[int], *, max_depth: int, gain: float) -> None:
        """Take the tokens committed since the last step."""
        self.text.extend(sequence[self.text.length :])
        self.columns.state.max_depth, self.columns.state.gain = max_depth, gain

    def start(self, max_size: int) -> Nodes:
        """Return the likeliest continuations that a step begins with, the likeliest first."""
        return self._grown(Nodes(*(column[:0] for column in Nodes.root(0))), 0, max_size, 0.0)

    def below(self, nodes: Nodes, old: int, max_size: int, least: float) -> Nodes:
        """Return the nodes, with continuations found for those from `old` on that score `least` or more."""
        columns = self.columns.columns
        for name in ("parents", "depths", "tokens", "probs", "scores"):
            columns[name][: nodes.size] = getattr(nodes, name)
        return self._grown(nodes, old, nodes.size + max_size, least)

    def _grown(self, nodes: Nodes, old: int, max_size: int, least: float) -> Nodes:
        self.columns.state.max_size, self.columns.state.least = max_size, max(LEAST_SCORE, least)
        size = nodes.size
        grown = self.text.grow(self.columns, size, old)
        names = ("parents", "depths", "tokens", "probs", "scores")
        parents, depths, tokens, probs, scores = (self.columns.columns[name][size:grown] for name in names)
        unread, looked_up = np.full(grown - size, -1), (parents >= 0).astype(np.int64)
        added = parents, np.zeros_like(parents), depths, tokens, probs, scores, unread, looked_up
        return Nodes(*map(np.concatenate, zip(nodes, added, strict=True)))


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
