"""Walks: verify a drafted tree from the root down or from the leaves up, and record each decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..trees.tree import TokenTree
from .row_operations import row_operations
from .verifiers import Offer, Rule, traversal_rule


def no_first_row(node: int) -> None:
    """Return None: the first drawn child came from the draft's row, like its siblings."""


class Trial(NamedTuple):
    """One decision: the node offered, the uniform number drawn, and the masses R[s] and D[s]."""

    node: int
    uniform: float
    target_mass: float
    draft_mass: float

    @property
    def accepted(self) -> bool:
        return self.uniform * self.draft_mass < self.target_mass


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of verification: the accepted path (root first), the bonus token, and every trial in order."""

    path: tuple[int, ...]
    bonus_token: int
    trials: tuple[Trial, ...]

    def up_to(self, tree: TokenTree, count: int) -> Walk:
        """Return the walk truncated to the first `count` committed tokens.

        Deeper trials are also dropped, since they did not affect the text.
        """
        if count > len(self.path) - 1:
            return self
        trials = tuple(trial for trial in self.trials if tree.depths[trial.node] <= count)
        return Walk(self.path[: count + 1], self.bonus_token, trials)


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A drafted tree with both models' rows at its nodes.

    Attributes:
        tokens: each node's token [n].
        target_row, draft_row: functions from a node to its row, float64 [V]; called only for visited nodes, and
            `draft_row` only for inner nodes.
        first_row: function from a node to the row that its first drawn child came from, float64 [V]; it returns None
            for the draft's row.
        looked_up: as in `DraftTree`; used only with `sequoia_rule`.
    """

    tree: TokenTree
    tokens: Sequence[int]
    target_row: Callable[[int], np.ndarray]
    draft_row: Callable[[int], np.ndarray]
    first_row: Callable[[int], np.ndarray | None] = no_first_row
    looked_up: np.ndarray | None = None

    def offers(self, rule: Rule, node: int, target: np.ndarray, draft: np.ndarray) -> Iterator[Offer]:
        """Offer a node's children by a rule; `target` is the target's row at the node, or its residual."""
        known: dict[str, Any] = {} if self.looked_up is None else {"looked_up": int(self.looked_up[node])}
        if (first := self.first_row(node)) is not None:
            known["first"] = first
        return rule(target, draft, [self.tokens[child] for child in self.tree.children(node)], **known)


def walk_tree(scored: ScoredTree, *, rule: Rule, uniform: Callable[[], float]) -> Walk:
    """Descend from the root while a child is accepted, then sample the bonus token; `uniform` draws from [0, 1)."""
    path = [0]
    trials = []
    node = 0
    while True:
        residual = scored.target_row(node)
        children = scored.tree.children(node)
        descended = False
        if children:
            offers = scored.offers(rule, node, residual, scored.draft_row(node))
            for child, offer in zip(children, offers, strict=True):
                # A draft mass of 0 is the rounding case of `Offer.accept_prob`: the target mass alone decides.
                trials.append(Trial(child, uniform(), offer.target_mass, offer.draft_mass or 1e-300))
                if trials[-1].accepted:
                    path.append(child)
                    node = child
                    descended = True
                    break
                residual = offer.residual
        if not descended:
            return Walk(tuple(path), row_operations().invert(residual, uniform()), tuple(trials))


class Stop(NamedTuple):
    """A node at which a walk from the leaves may end.

    Attributes:
        share: the probability that the walk ends here, given that it reaches the node.
        residual: float64 [V], unnormalized distribution of the bonus token; None for the target's row.
    """

    node: int
    share: float
    residual: np.ndarray | None


def stops(scored: ScoredTree, node: int = 0, share: float = 1.0) -> Iterator[Stop]:
    """Yield the nodes at which a walk from the leaves may end, in post-order with children in the order drawn.

    Nodes below a child that is never kept are omitted. `share` is the probability of keeping the node or a descendant.
    """
    children = scored.tree.children(node)
    residual = None
    if children:
        residual = share * scored.target_row(node)
        offers = scored.offers(traversal_rule, node, residual, scored.draft_row(node))
        for child, offer in zip(children, offers, strict=True):
            if offer.accept_prob > 0.0:
                yield from stops(scored, child, offer.accept_prob)
            else:
                yield Stop(child, 0.0, None)
            residual = offer.residual
        share = float(residual.sum())
    yield Stop(node, share, residual)


def walk_from_leaves(scored: ScoredTree, *, rule: Rule, uniform: Callable[[], float]) -> Walk:
    """Ascend from the leaves until a path is kept, then sample the bonus token (Traversal Verification, 2505.12398).

    Tokens below a node can compensate for a token that is less likely under the target than under the draft, whereas a
    walk from the root decides before it reaches them. A trial's target mass is the probability of keeping the node and
    the path to it; the root is always kept, without a trial. Takes the arguments of `walk_tree`, with `traversal_rule`.
    """
    assert rule is traversal_rule, "other rules decide from the root downwards"
    trials: list[Trial] = []
    for stop in stops(scored):
        if stop.node:
            trials.append(Trial(stop.node, uniform(), stop.share, 1.0))
        if not stop.node or trials[-1].accepted:
            break
    residual = scored.target_row(stop.node) if stop.residual is None else stop.residual
    path = tuple(scored.tree.path_to(stop.node))
    return Walk(path, row_operations().invert(residual, uniform()), tuple(trials))


WALKS: dict[Rule, Callable[..., Walk]] = {traversal_rule: walk_from_leaves}  # all other rules use walk_tree


def walk_greedily(tree: TokenTree, tokens: Sequence[int], choice: Callable[[int], int]) -> Walk:
    """Descend while a child matches the target's argmax; `choice` returns the argmax at a node."""
    path = [0]
    trials = []
    node = 0
    while True:
        wanted = choice(node)
        for child in tree.children(node):
            trials.append(Trial(child, 0.0, float(tokens[child] == wanted), 1.0))
            if trials[-1].accepted:
                path.append(child)
                node = child
                break
        else:
            return Walk(tuple(path), wanted, tuple(trials))
