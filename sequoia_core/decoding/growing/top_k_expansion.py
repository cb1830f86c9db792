"""How one step's tree grows from the draft's most likely tokens, and from looked-up ones where there is text.

`native/tree_expansion.c` does the same number for number: change both.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...design.calibration import ChanceTables
from .expansion import DraftChances, Nodes, Rows, TokenCosts, TreeBounds, best_width, worth_verifying
from .running_lookup import LookUp, beside, likely_by_both, scored, shares_of, total_of


@dataclass(frozen=True, slots=True)
class TopKExpansion:
    """Keeps the best of all candidates: all are chosen before the target draws, so the top-k rule is exact.

    Where text is looked up, a step begins with its likeliest continuations; the draft reads the nodes after which
    another token is likeliest, and below each token that it adds, text is looked up again.

    Attributes:
        draws: whether children are drawn, and each draw is decided on before its token is known.
        compiled: whether `native/tree_expansion.c` decides the same.
        expected: float64 [k], the chance of a child by rank where nothing is known of the row.
        token_costs: None uses the whole budget, and stops only when no better node than the worst kept can follow.
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
        """Return the nodes that a step begins with: the root, and what is known to be below."""
        return Nodes.root(token) if self.look_up is None else self.look_up.start(self.bounds.max_size)

    def frontier(self, nodes: Nodes) -> np.ndarray:
        """Return which nodes the next draft pass reads, int64 [w]; empty when the tree is complete."""
        others = nodes.scores  # the chance of another token after a node than those below it
        if self.look_up is not None:
            others = nodes.scores - np.bincount(nodes.parents[1:], nodes.scores[1:], nodes.size)
        unread = (nodes.cache_positions < 0) & (nodes.depths < self.bounds.max_depth) & self.worth_reading(others)
        if nodes.cache_positions[0] < 0:
            unread[1:] = False  # the root's pass also reads what was committed
        wanted = np.flatnonzero(unread)
        order, widths = self._with_ancestors(nodes, wanted[np.argsort(-others[wanted], kind="stable")])
        costs, count = self.token_costs, len(widths) - 1
        if costs is not None and count:

            def net_gain(count: int) -> float:
                expected = np.outer(others[order[: widths[count]]], self.expected).ravel()
                return self.net_gain(nodes, expected, costs) - costs.draft[widths[count]]

            count = best_width(net_gain, count)
        frontier = order[: widths[count]]
        return frontier if self.look_up is None else np.sort(frontier)  # parents before their children

    def worth_reading(self, others: np.ndarray) -> np.ndarray:
        """Return after which nodes the draft may be asked for another token, bool [n]."""
        return others > 0.0

    def net_gain(self, nodes: Nodes, expected: np.ndarray, costs: TokenCosts) -> float:
        """Return the tokens of the best tree of these nodes and so many expected gains, less its cost."""
        scores = -np.sort(-np.concatenate([nodes.scores, expected]))[: self.bounds.max_size]
        return float((np.cumsum(scores) - costs.step[1 : len(scores) + 1]).max())

    def _with_ancestors(self, nodes: Nodes, wanted: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Return the first nodes with their unread ancestors, a beam at most, and how many come with each of them."""
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

    def extended(self, nodes: Nodes, frontier: np.ndarray, rows: Rows) -> Nodes:
        """Return the nodes with the children that were chosen; the order of nodes may change."""
        tokens, probs = rows.most_likely(self.bounds.branch)
        chances, fresh, old = self.chances.most_likely(probs), np.ones(tokens.shape, bool), nodes.size
        if self.look_up is not None:
            nodes, chances, fresh = self._beside(nodes, frontier, rows, tokens, chances)
        nodes = nodes.with_children(frontier, fresh, tokens, probs, nodes.scores[frontier, None] * chances)
        most = self.bounds.max_size
        if self.look_up is not None:
            least = -float(np.sort(-nodes.scores)[most - 1]) if nodes.size >= most else 0.0  # what it takes to be kept
            nodes = self.look_up.below(nodes, old, most, least)
        # A node that is not among the best now never will be: further candidates only lower its place.
        return nodes.best(most)

    def kept(self, nodes: Nodes) -> Nodes:
        """Return the nodes that go to the target."""
        if self.token_costs is not None:
            nodes = nodes.first(worth_verifying(nodes.scores, self.token_costs.step))
        if self.look_up is None:
            return nodes
        return nodes._replace(ranks=np.append(0, np.arange(1, nodes.size)))  # siblings in the order of their chances

    def _beside(
        self, nodes: Nodes, frontier: np.ndarray, rows: Rows, tokens: np.ndarray, chances: np.ndarray
    ) -> tuple[Nodes, np.ndarray, np.ndarray]:
        """Weigh the looked-up children of a frontier and the draft's most likely tokens, int64 [w, k], together.

        Returns:
            The nodes; the chance of each token, float64 [w, k]; and which are no looked-up children, bool [w, k].
        """
        shares, fresh, chances = shares_of(nodes), np.ones(tokens.shape, bool), chances.copy()
        for row, node in enumerate(frontier.tolist()):
            below = np.flatnonzero(nodes.parents == node)
            looked_up, both = self.weighed(nodes, below, shares[below], tokens[row], rows, row)
            fresh[row] = ~np.isin(tokens[row], nodes.tokens[below])
            drafted = beside(looked_up, chances[row][fresh[row]])
            total = max(1.0, total_of(both) + total_of(drafted))
            shares[below], chances[row, fresh[row]] = np.array(both) / total, np.array(drafted) / total
        return scored(nodes, shares), chances, fresh

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
        assert self.look_up is not None, "only looked-up nodes have children before they are read"
        seen, looked_up = nodes.tokens[below], (shares / self.look_up.gain).tolist()
        nodes.probs[below] = given = rows.given(row, seen)
        by_draft = self.chances.of_tokens(best, seen, given).tolist()
        return total_of(looked_up), [likely_by_both(*pair) for pair in zip(looked_up, by_draft, strict=True)]
