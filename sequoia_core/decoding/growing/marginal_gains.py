"""What each node of a dynamic tree is expected to add, what it costs, and the best candidates left out. n = nodes."""

import numpy as np

from ..node_facts import LeftOut, MarginalGains
from .expansion import Nodes, Rows
from .top_k_expansion import TopKExpansion


def marginal_gains(expansion: TopKExpansion, nodes: Nodes, rows: Rows, *, most: int) -> MarginalGains:
    """Return the gains and costs of a finished tree, whose read nodes have `rows`; beside text, only gains."""
    costs: list[float | None] = [None] * nodes.size
    next_cost: float | None = None
    left_out: tuple[LeftOut, ...] = ()
    if expansion.look_up is None:
        left_out = _left_out(expansion, nodes, rows, most)
        if expansion.token_costs is not None:
            marginal = np.diff(expansion.token_costs.step).tolist()  # of the first node, the second, ...
            for node, cost in zip(np.argsort(-nodes.scores, kind="stable").tolist(), marginal, strict=False):
                costs[node] = cost if node else None
            next_cost = marginal[nodes.size] if nodes.size < len(marginal) else None
    return MarginalGains(tuple(nodes.scores.tolist()), tuple(costs), next_cost, left_out)


def _left_out(expansion: TopKExpansion, nodes: Nodes, rows: Rows, most: int) -> tuple[LeftOut, ...]:
    unread = np.flatnonzero((nodes.cache_positions < 0) & (nodes.depths < expansion.bounds.max_depth))
    # no columns where nothing is expected
    expected = np.minimum(nodes.scores[unread, None] * expansion.expected[:1], 1.0)
    left_out = [
        LeftOut(node, None, gain) for node, gain in zip(unread.tolist(), expected.ravel().tolist(), strict=False)
    ]
    read = np.flatnonzero(nodes.cache_positions >= 0)
    if not expansion.draws and len(read):
        tokens, probs = rows.most_likely(expansion.bounds.branch)
        gains = nodes.scores[read, None] * expansion.chances.most_likely(probs)
        best = np.argsort(-gains, axis=None, kind="stable")[: most + nodes.size]  # some of them are in the tree
        held = set(zip(nodes.parents.tolist(), nodes.tokens.tolist(), strict=True))
        for row, rank in zip(*np.unravel_index(best, gains.shape), strict=True):
            one = LeftOut(int(read[row]), int(tokens[row, rank]), float(gains[row, rank]))
            if one[:2] not in held:
                left_out.append(one)
    return tuple(sorted(left_out, key=lambda one: -one.gain)[:most])
