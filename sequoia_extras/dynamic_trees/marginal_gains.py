"""The expected gain and the cost of each node in a dynamic tree, and the best candidates left out. n = nodes."""

import numpy as np

from sequoia_core.decoding.node_facts import LeftOut, MarginalGains

from .expansion import FrontierRows, Nodes
from .top_k_expansion import TopKExpansion


def marginal_gains(expansion: TopKExpansion, nodes: Nodes, rows: FrontierRows, *, limit: int) -> MarginalGains:
    """Return the gains and costs of a finished tree, and up to `limit` candidates; with look-ups, only the gains.

    `rows` are the draft's distributions after the nodes that it read.
    """
    costs: list[float | None] = [None] * nodes.size
    next_cost: float | None = None
    left_out: tuple[LeftOut, ...] = ()
    if expansion.look_up is None:
        left_out = _left_out(expansion, nodes, rows, limit)
        if expansion.token_costs is not None:
            # The marginal costs of the first node, the second, and so on.
            marginal = np.diff(expansion.token_costs.step).tolist()
            by_score = np.argsort(-nodes.scores, kind="stable").tolist()
            for node, cost in zip(by_score[1:], marginal[1:], strict=False):
                costs[node] = cost
            next_cost = marginal[nodes.size] if nodes.size < len(marginal) else None
    return MarginalGains(tuple(nodes.scores.tolist()), tuple(costs), next_cost, left_out)


def _left_out(expansion: TopKExpansion, nodes: Nodes, rows: FrontierRows, limit: int) -> tuple[LeftOut, ...]:
    unread = np.flatnonzero((nodes.cache_positions < 0) & (nodes.depths < expansion.bounds.max_depth))
    # If the policy has no expected probabilities, this array is empty and no first children are listed.
    gains = np.minimum(nodes.scores[unread, None] * expansion.expected[:1], 1.0)
    left_out = [LeftOut(node, None, gain) for node, gain in zip(unread.tolist(), gains.ravel().tolist(), strict=False)]
    read = np.flatnonzero(nodes.cache_positions >= 0)
    if not expansion.draws and len(read):
        tokens, probs = rows.most_likely(expansion.bounds.branch)
        gains = nodes.scores[read, None] * expansion.chances.most_likely(probs)
        # Up to `nodes.size` of the best candidates are already in the tree.
        best = np.argsort(-gains, axis=None, kind="stable")[: limit + nodes.size]
        in_tree = set(zip(nodes.parents.tolist(), nodes.tokens.tolist(), strict=True))
        for row, rank in zip(*np.unravel_index(best, gains.shape), strict=True):
            candidate = LeftOut(int(read[row]), int(tokens[row, rank]), float(gains[row, rank]))
            if candidate[:2] not in in_tree:
                left_out.append(candidate)
    return tuple(sorted(left_out, key=lambda candidate: -candidate.gain)[:limit])
