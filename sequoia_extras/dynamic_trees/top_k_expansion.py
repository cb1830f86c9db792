"""Grows a step's tree from the draft's most likely tokens and, with look-ups, from looked-up tokens.

`tree_expansion.c` in cpu_kernels computes the same numbers, so change them together.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sequoia_core.acceptance.calibration import ChanceTables

from .expansion import DraftChances, FrontierRows, Nodes, TokenCosts, TreeBounds, best_width, count_worth_verifying
from .running_lookup import (
    LookUp,
    combined_chance,
    conditional_chances,
    draft_only_chances,
    ordered_sum,
    with_conditional_chances,
)


@dataclass(frozen=True, slots=True)
class TopKExpansion:
    """Selects the best of all candidates before the target draws, so that the top-k rule is exact.

    With look-ups, a step begins with the text's likeliest continuations. The draft then reads the nodes that are most
    likely to be followed by a token not in the tree, and text is looked up again below each token that it adds.

    Attributes:
        draws: whether children are drawn; whether to make a draw is decided before its token is known.
        compiled: whether `tree_expansion.c` in cpu_kernels makes the same decisions.
        expected: float64 [k], average acceptance probability of a child by rank.
        token_costs: None to use the whole budget, and stop early only if no better node can be found.
        look_up: the text in which nodes are looked up; None without look-ups.
    """

    draws: ClassVar[bool] = False
    compiled: ClassVar[bool] = True

    bounds: TreeBounds
    chances: ChanceTables | DraftChances
    expected: np.ndarray = field(default_factory=lambda: np.empty(0))
    token_costs: TokenCosts | None = None
    look_up: LookUp | None = None

    @property
    def threshold(self) -> float:
        return 0.0

    def start(self, token: int) -> Nodes:
        """Return a step's initial nodes: the root, and looked-up nodes below it."""
        return Nodes.root(token) if self.look_up is None else self.look_up.grow_root(self.bounds.max_size)

    def choose_frontier(self, nodes: Nodes) -> np.ndarray:
        """Return the nodes that the next draft pass reads, int64 [w]; empty if the tree is complete."""
        # The probability that a node is reached and followed by a token that is not among its children.
        others = nodes.scores
        if self.look_up is not None:
            others = nodes.scores - np.bincount(nodes.parents[1:], nodes.scores[1:], nodes.size)
        unread = (nodes.cache_positions < 0) & (nodes.depths < self.bounds.max_depth) & self.worth_reading(others)
        if nodes.cache_positions[0] < 0:
            # The first pass reads only the root and committed tokens before it.
            unread[1:] = False
        wanted = np.flatnonzero(unread)
        order, widths = self._with_ancestors(nodes, wanted[np.argsort(-others[wanted], kind="stable")])
        costs = self.token_costs
        count = len(widths) - 1
        if costs is not None and count:

            def net_gain(count: int) -> float:
                expected = np.outer(others[order[: widths[count]]], self.expected).ravel()
                return self.net_gain(nodes, expected, costs) - costs.draft[widths[count]]

            count = best_width(net_gain, count)
        frontier = order[: widths[count]]
        # Sorting puts parents before their children.
        return frontier if self.look_up is None else np.sort(frontier)

    def worth_reading(self, others: np.ndarray) -> np.ndarray:
        """Return which nodes the draft may add children to, bool [n]."""
        return others > 0.0

    def net_gain(self, nodes: Nodes, expected: np.ndarray, costs: TokenCosts) -> float:
        """Return the net gain of the best tree from these nodes and expected children: its tokens minus its cost."""
        scores = -np.sort(-np.concatenate([nodes.scores, expected]))[: self.bounds.max_size]
        return float((np.cumsum(scores) - costs.step[1 : len(scores) + 1]).max())

    def _with_ancestors(self, nodes: Nodes, wanted: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Return the first wanted nodes and their unread ancestors, at most `beam` in all, and a running count."""
        if self.look_up is None:
            order = wanted[: self.bounds.beam]
            return order, list(range(len(order) + 1))
        ahead: list[int] = []
        widths = [0]
        for node in wanted.tolist():
            path = []
            while node >= 0 and nodes.cache_positions[node] < 0 and node not in ahead:
                path.append(node)
                node = int(nodes.parents[node])
            if len(ahead) + len(path) > self.bounds.beam:
                break
            ahead += path
            widths.append(len(ahead))
        return np.array(ahead, np.int64), widths

    def expand(self, nodes: Nodes, frontier: np.ndarray, rows: FrontierRows) -> Nodes:
        """Return the nodes with the frontier's selected children added; the order of the nodes may change."""
        tokens, probs = rows.most_likely(self.bounds.branch)
        chances = self.chances.most_likely(probs)
        new = np.ones(tokens.shape, bool)
        size = nodes.size
        max_size = self.bounds.max_size
        if self.look_up is not None:
            nodes, chances, new = self._merge(nodes, frontier, rows, tokens, chances)
        nodes = nodes.with_children(frontier, new, tokens, probs, nodes.scores[frontier, None] * chances)
        if self.look_up is not None:
            worst = -float(np.sort(-nodes.scores)[max_size - 1]) if nodes.size >= max_size else 0.0
            nodes = self.look_up.grow_below(nodes, size, max_size, worst)
        # Dropping nodes now is safe, because further candidates can only push them further down.
        return nodes.best(max_size)

    def prune(self, nodes: Nodes) -> Nodes:
        """Return the nodes to send to the target."""
        if self.token_costs is not None:
            nodes = nodes.first(count_worth_verifying(nodes.scores, self.token_costs.step))
        if self.look_up is None:
            return nodes
        # Nodes are in descending order of score, so their indices rank siblings.
        return nodes._replace(ranks=np.arange(nodes.size))

    def _merge(
        self, nodes: Nodes, frontier: np.ndarray, rows: FrontierRows, tokens: np.ndarray, chances: np.ndarray
    ) -> tuple[Nodes, np.ndarray, np.ndarray]:
        """Combine a frontier's looked-up children with the draft's most likely tokens, int64 [w, k].

        Returns:
            The nodes with new scores; the probability of each token, float64 [w, k]; and whether each token is new,
            that is, not a looked-up child, bool [w, k].
        """
        conditional = conditional_chances(nodes)
        new = np.ones(tokens.shape, bool)
        chances = chances.copy()
        for row, node in enumerate(frontier.tolist()):
            children = np.flatnonzero(nodes.parents == node)
            looked_up, combined = self.combine_chances(nodes, children, conditional[children], tokens[row], rows, row)
            new[row] = ~np.isin(tokens[row], nodes.tokens[children])
            drafted = draft_only_chances(looked_up, chances[row][new[row]])
            total = max(1.0, ordered_sum(combined) + ordered_sum(drafted))
            conditional[children] = np.array(combined) / total
            chances[row, new[row]] = np.array(drafted) / total
        return with_conditional_chances(nodes, conditional), chances, new

    def combine_chances(
        self,
        nodes: Nodes,
        children: np.ndarray,
        conditional: np.ndarray,
        best: np.ndarray,
        rows: FrontierRows,
        row: int,
    ) -> tuple[float, list[float]]:
        """Set the draft's probabilities of a node's looked-up children, and combine them with those from text.

        Args:
            children: int64 [c], indices of the looked-up children.
            conditional: float64 [c], their probabilities given the node, from text.
            best: int64 [k], the draft's most likely tokens after the node.

        Returns:
            The sum of the children's probabilities from text, and the combined probability of each child.
        """
        assert self.look_up is not None, "only look-ups give nodes children before they are read"
        tokens = nodes.tokens[children]
        probs = rows.probabilities(row, tokens)
        nodes.probs[children] = probs
        looked_up = (conditional / self.look_up.gain).tolist()
        drafted = self.chances.token_chances(best, tokens, probs).tolist()
        return ordered_sum(looked_up), [combined_chance(*pair) for pair in zip(looked_up, drafted, strict=True)]


class LevelExpansion(TopKExpansion):
    """Grows a tree as a beam, level by level: each pass reads the best nodes of the newest level only (EAGLE-2)."""

    compiled = False

    def choose_frontier(self, nodes: Nodes) -> np.ndarray:
        depth = int(nodes.depths.max())
        unread = (nodes.depths == depth) & (nodes.cache_positions < 0) & (depth < self.bounds.max_depth)
        # Nodes are in descending order of score.
        return np.flatnonzero(unread)[: self.bounds.beam]
