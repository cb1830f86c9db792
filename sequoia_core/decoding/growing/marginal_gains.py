"""What each node of a dynamic tree is expected to add, what it costs, and the best candidates left out. n = nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .expansion import ExpansionPolicy, Nodes, Rows, SampledExpansion, TopKExpansion


class LeftOut(NamedTuple):
    """A candidate that is not in the tree.

    Attributes:
        parent: node of the tree below which it would be.
        token: None for the first child of a node that the draft did not read.
    """

    parent: int
    token: int | None
    gain: float


@dataclass(frozen=True, slots=True)
class MarginalGains:
    """Expected tokens of the nodes against their marginal costs.

    Attributes:
        gains: tokens that each node is expected to add [n]: the chance that it is accepted, 1 for the root.
        costs: the marginal cost of each node in order of gains [n], in tokens that the run commits in that time; None
            for the root and where no costs are counted.
        next_cost: the same for one node more than the tree has; None where it is full or no costs are counted.
        left_out: the best candidates that are not in the tree, best first; of a sampled tree only first children of
            nodes that were not read.
    """

    gains: tuple[float, ...]
    costs: tuple[float | None, ...]
    next_cost: float | None
    left_out: tuple[LeftOut, ...]


def marginal_gains(expansion: ExpansionPolicy, nodes: Nodes, rows: Rows, *, most: int) -> MarginalGains:
    """Return the gains and costs of a finished tree, whose read nodes have `rows`; of an unknown policy the gains."""
    costs: list[float | None] = [None] * nodes.size
    next_cost: float | None = None
    left_out: tuple[LeftOut, ...] = ()
    if isinstance(expansion, TopKExpansion | SampledExpansion):
        left_out = _left_out(expansion, nodes, rows, most)
        if expansion.token_costs is not None:
            marginal = np.diff(expansion.token_costs.step).tolist()  # of the first node, the second, ...
            for node, cost in zip(np.argsort(-nodes.scores, kind="stable").tolist(), marginal, strict=False):
                costs[node] = cost if node else None
            next_cost = marginal[nodes.size] if nodes.size < len(marginal) else None
    return MarginalGains(tuple(nodes.scores.tolist()), tuple(costs), next_cost, left_out)


def _left_out(expansion: TopKExpansion | SampledExpansion, nodes: Nodes, rows: Rows, most: int) -> tuple[LeftOut, ...]:
    unread = np.flatnonzero((nodes.cache_positions < 0) & (nodes.depths < expansion.bounds.max_depth))
    # no columns where nothing is expected
    expected = np.minimum(nodes.scores[unread, None] * expansion.expected[:1], 1.0)
    left_out = [
        LeftOut(node, None, gain) for node, gain in zip(unread.tolist(), expected.ravel().tolist(), strict=False)
    ]
    read = np.flatnonzero(nodes.cache_positions >= 0)
    if isinstance(expansion, TopKExpansion) and len(read):
        tokens, probs = rows.most_likely(expansion.bounds.branch)
        gains = nodes.scores[read, None] * expansion.chances.most_likely(probs)
        best = np.argsort(-gains, axis=None, kind="stable")[: most + nodes.size]  # some of them are in the tree
        held = set(zip(nodes.parents.tolist(), nodes.tokens.tolist(), strict=True))
        for row, rank in zip(*np.unravel_index(best, gains.shape), strict=True):
            one = LeftOut(int(read[row]), int(tokens[row, rank]), float(gains[row, rank]))
            if one[:2] not in held:
                left_out.append(one)
    return tuple(sorted(left_out, key=lambda one: -one.gain)[:most])
