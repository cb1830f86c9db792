"""Grows a step's tree from children drawn from the draft's rows and, with look-ups, from looked-up children.

`tree_expansion.c` in cpu_kernels computes the same numbers, so change them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sequoia_core.acceptance.calibration import ChanceTables

from .expansion import FrontierRows, Nodes, TokenCosts, best_draws, largest_undrawn
from .running_lookup import conditional_chances, draft_only_chances, ordered_sum, with_conditional_chances
from .top_k_expansion import TopKExpansion


@dataclass(frozen=True, slots=True)
class SampledExpansion(TopKExpansion):
    """Draws children without replacement; whether to make a further draw is decided before its token is known.

    A node's looked-up children are chosen before any child is drawn, and draws yield different tokens. Hence no draw
    changes the order or the number of the children proposed before it, and `verifiers.sequoia_rule` is exact.

    Args:
        chances: tables of acceptance probabilities; those before a draw decide whether it is made, those after it
            only affect the descendants.
        expected: float64 [k], average acceptance probability of a drawn child by rank.
        token_costs: None to ignore costs, so that only the threshold limits draws.
        threshold: smallest gain that justifies a draw, so that the budget lasts until deeper levels.
    """

    draws: ClassVar[bool] = True

    chances: ChanceTables
    threshold: float = 0.0

    def choose_frontier(self, nodes: Nodes) -> np.ndarray:
        if _is_final(nodes).sum() >= self.bounds.max_size:
            return np.empty(0, np.int64)
        # super() fails here, since it refers to the class before slots=True replaced it.
        return TopKExpansion.choose_frontier(self, nodes)

    def worth_reading(self, others: np.ndarray) -> np.ndarray:
        return others * self.expected.max() > self.threshold

    def net_gain(self, nodes: Nodes, expected: np.ndarray, costs: TokenCosts) -> float:
        if self.look_up is None:
            return self._best_draws(nodes.size, expected)[0]
        return TopKExpansion.net_gain(self, nodes, expected, costs)

    def expand(self, nodes: Nodes, frontier: np.ndarray, rows: FrontierRows) -> Nodes:
        best, best_probs = rows.most_likely(self.bounds.branch)
        if self.look_up is not None:
            return self._expand_with_text(nodes, frontier, rows, best, best_probs)
        reach = nodes.scores[frontier, None]
        # The smallest worthwhile gain is computed from the rows alone, as if the most likely tokens were drawn.
        left = 1.0 - (np.cumsum(best_probs, axis=1) - best_probs)
        planned = np.minimum.accumulate(reach * self.chances.before_draw(left, best_probs), axis=1)
        least_gain = self._best_draws(nodes.size, planned.ravel())[1]
        ranks = min(int((planned >= least_gain).sum(axis=1).max()) + 1, self.bounds.branch)
        tokens, probs = rows.draw(ranks)
        # A draw is decided only by the tokens drawn before it; later tokens have been drawn already, but are ignored.
        left = 1.0 - (np.cumsum(probs, axis=1) - probs)
        largest = largest_undrawn(tokens, best, best_probs)
        chosen = np.logical_and.accumulate(reach * self.chances.before_draw(left, largest) >= least_gain, axis=1)
        chosen &= np.cumsum(chosen).reshape(chosen.shape) <= self.bounds.max_size - nodes.size
        return nodes.with_children(frontier, chosen, tokens, probs, reach * self.chances.after_draw(probs))

    def prune(self, nodes: Nodes) -> Nodes:
        if self.look_up is None:
            return nodes
        final = _is_final(nodes)
        count = nodes.size
        if self.token_costs is not None:
            least = int(final.sum())
            values = np.cumsum(nodes.scores) - self.token_costs.step[1 : count + 1]
            count = least + int(values[least - 1 :].argmax())
        return nodes._replace(ranks=np.where(final, nodes.ranks, np.arange(nodes.size))).first(count)

    def _best_draws(self, size: int, gains: np.ndarray) -> tuple[float, float]:
        return best_draws(gains, size, max_size=self.bounds.max_size, costs=self.token_costs, threshold=self.threshold)

    def _expand_with_text(
        self, nodes: Nodes, frontier: np.ndarray, rows: FrontierRows, best: np.ndarray, best_probs: np.ndarray
    ) -> Nodes:
        assert self.look_up is not None, "checked by `expand`"
        max_size = self.bounds.max_size
        nodes, plans = self._plan_draws(nodes, frontier, rows, best, best_probs)
        # Children of the frontier become final in this pass.
        pending = np.isin(nodes.parents, frontier)
        final = _is_final(nodes) & ~pending
        size = int(final.sum())
        gains = np.concatenate([nodes.scores[~final], *(plan.gains for plan in plans)])
        least_gain = self._best_draws(size, gains)[1]
        ranks = min(max(int((plan.gains >= least_gain).sum()) for plan in plans) + 1, self.bounds.branch)
        nodes, new_index = _drop_children(nodes, pending, least_gain, max_size - size)
        frontier = new_index[frontier]
        # `node >= 0` excludes dropped nodes: their new index is -1, which is also the root's parent.
        children = [np.flatnonzero((nodes.parents == node) & (node >= 0)) for node in frontier.tolist()]
        for siblings in children:
            nodes.ranks[siblings] = 1 + np.argsort(np.argsort(-nodes.scores[siblings], kind="stable"), kind="stable")
        # Draws that repeat looked-up tokens are ignored, so as many extra tokens are drawn.
        tokens, probs = rows.draw(ranks + max(map(len, children)), [nodes.tokens[siblings] for siblings in children])
        chosen = np.zeros(tokens.shape, bool)
        scores = np.zeros(tokens.shape)
        counts = np.array([len(siblings) for siblings in children])
        remaining = max_size - size - int(counts.sum())
        for row, node in enumerate(frontier.tolist()):
            if node < 0:
                continue
            offered = _Offered(tokens[row], probs[row], best[row], best_probs[row])
            drawn, before, after = self._weigh_draws(offered, nodes, children[row], plans[row], ranks)
            count = int(np.logical_and.accumulate(nodes.scores[node] * before >= least_gain).sum())
            drawn = drawn[: max(min(count, remaining), 0)]
            chosen[row, drawn] = True
            scores[row, drawn] = nodes.scores[node] * after[: len(drawn)]
            remaining -= len(drawn)
        grown = nodes.with_children(frontier, chosen, tokens, probs, scores)
        grown.ranks[nodes.size :] += np.repeat(counts, chosen.sum(axis=1))
        grown = self.look_up.grow_below(grown, nodes.size, max_size, self.threshold)
        return grown.select(np.lexsort((-grown.scores, ~_is_final(grown)))[:max_size])

    def _weigh_draws(
        self, offered: _Offered, nodes: Nodes, children: np.ndarray, plan: _DrawPlan, ranks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Estimate the probabilities of tokens drawn after a node; `children`, int64 [c], are its looked-up children.

        Returns:
            Indices [k] of the draws that are not looked-up tokens; the acceptance probability of each, float64 [k],
            before its token is known; and the probability once the token is known.
        """
        looked_up = nodes.tokens[children]
        drawn = np.flatnonzero(~np.isin(offered.tokens, looked_up))[:ranks]
        tokens = offered.tokens[drawn]
        probs = offered.probs[drawn]
        if not len(drawn):
            return drawn, probs, probs
        left = 1.0 - ordered_sum(nodes.probs[children].tolist()) - (np.cumsum(probs) - probs)
        others = np.where(np.isin(offered.best, looked_up), 0.0, offered.best_probs)
        largest = largest_undrawn(tokens[None], offered.best[None], others[None])
        before = draft_only_chances(plan.looked_up, self.chances.before_draw(left[None], largest)[0])
        after = draft_only_chances(plan.looked_up, self.chances.after_draw(probs[None])[0])
        return drawn, np.array(before) / plan.total, np.array(after) / plan.total

    def _plan_draws(
        self, nodes: Nodes, frontier: np.ndarray, rows: FrontierRows, best: np.ndarray, best_probs: np.ndarray
    ) -> tuple[Nodes, list[_DrawPlan]]:
        """Return the nodes with their combined probabilities, and a plan of the draws from each row."""
        conditional = conditional_chances(nodes)
        plans = []
        for row, node in enumerate(frontier.tolist()):
            children = np.flatnonzero(nodes.parents == node)
            looked_up, combined = self.combine_chances(nodes, children, conditional[children], best[row], rows, row)
            probs = best_probs[row][~np.isin(best[row], nodes.tokens[children])]
            left = 1.0 - ordered_sum(nodes.probs[children].tolist()) - (np.cumsum(probs) - probs)
            before = self.chances.before_draw(left[None], probs[None])[0] if len(probs) else probs
            drafted = draft_only_chances(looked_up, before)
            total = max(1.0, ordered_sum(combined) + ordered_sum(drafted))
            conditional[children] = np.array(combined) / total
            plans.append(_DrawPlan(looked_up, total, np.array(drafted) / total))
        nodes = with_conditional_chances(nodes, conditional)
        return nodes, [
            plan._replace(gains=np.minimum.accumulate(reach * plan.gains))
            for reach, plan in zip(nodes.scores[frontier].tolist(), plans, strict=True)
        ]


class _Offered(NamedTuple):
    """The tokens drawn after a node, [k], and the draft's most likely tokens, [b], with their probabilities."""

    tokens: np.ndarray
    probs: np.ndarray
    best: np.ndarray
    best_probs: np.ndarray


class _DrawPlan(NamedTuple):
    """Properties of the draws after a node that depend only on the draft's row.

    Attributes:
        looked_up: sum of the look-up probabilities of the node's looked-up children.
        total: divisor of all probabilities, so that they sum to at most 1.
        gains: float64 [k], expected gain of each of the next draws, as if the most likely tokens were drawn.
    """

    looked_up: float
    total: float
    gains: np.ndarray


def _is_final(nodes: Nodes) -> np.ndarray:
    """Return which nodes cannot be dropped, bool [n]: their parent was read, so siblings may have been drawn."""
    return np.append(True, nodes.cache_positions[nodes.parents[1:]] >= 0)


def _drop_children(nodes: Nodes, pending: np.ndarray, least_gain: float, limit: int) -> tuple[Nodes, np.ndarray]:
    """Keep the best `limit` pending children, bool [n], with at least the least gain; drop the others' subtrees too.

    Returns:
        The remaining nodes, and the new index of each old node, -1 for dropped nodes.
    """
    wanted = np.flatnonzero(pending & (nodes.scores >= least_gain))
    stays = ~pending
    stays[wanted[np.argsort(-nodes.scores[wanted], kind="stable")][:limit]] = True
    # Parents come before their children.
    for node in range(1, nodes.size):
        stays[node] &= stays[nodes.parents[node]]
    return nodes.select(np.flatnonzero(stays)), np.where(stays, np.cumsum(stays) - 1, -1)
