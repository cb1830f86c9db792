"""Walks: verification goes down a drafted tree, child after child, or up from its leaves, and records each decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..design.tree import TokenTree
from .sampling import sample_row
from .verifiers import Offer, Rule, traversal_rule


def no_first_row(node: int) -> None:
    """Return None: the first drawn child came from the draft's row, like the others."""


class Trial(NamedTuple):
    """The arithmetic of one decision: node offered, uniform drawn, R[s] and D[s]."""

    node: int
    uniform: float
    target_mass: float
    draft_mass: float

    @property
    def accepted(self) -> bool:
        return self.uniform * self.draft_mass < self.target_mass


@dataclass(frozen=True, slots=True)
class Walk:
    """What verification decided: the accepted path (root first), the bonus token, and every trial in order."""

    path: tuple[int, ...]
    bonus_token: int
    trials: tuple[Trial, ...]

    def up_to(self, tree: TokenTree, count: int) -> Walk:
        """Return what a walk is worth to a text that ends with the first `count` of its tokens.

        Rejections deeper than that are left out too: they were not decided for the text.
        """
        if count > len(self.path) - 1:
            return self
        trials = tuple(trial for trial in self.trials if tree.depths[trial.node] <= count)
        return Walk(self.path[: count + 1], self.bonus_token, trials)


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A drafted tree and what both models say at its nodes.

    Attributes:
        tokens: token of every node [n].
        target_row, draft_row: node -> float64 [V]; asked only for the nodes visited, the draft's where there are
            children.
        first_row: node -> what its first drawn child came from, float64 [V]; None where that was the draft's row.
        looked_up: as in `DraftTree`; only for `sequoia_rule`.
    """

    tree: TokenTree
    tokens: Sequence[int]
    target_row: Callable[[int], np.ndarray]
    draft_row: Callable[[int], np.ndarray]
    first_row: Callable[[int], np.ndarray | None] = no_first_row
    looked_up: np.ndarray | None = None

    def offers(self, rule: Rule, node: int, target: np.ndarray, draft: np.ndarray) -> Iterator[Offer]:
        """Offer the children of a node by a rule; `target` is the target's row there, or what is left of it."""
        known: dict[str, Any] = {} if self.looked_up is None else {"looked_up": int(self.looked_up[node])}
        if (first := self.first_row(node)) is not None:
            known["first"] = first
        return rule(target, draft, [self.tokens[child] for child in self.tree.children(node)], **known)


def walk_tree(scored: ScoredTree, *, rule: Rule, uniform: Callable[[], float]) -> Walk:
    """Descend from the root as long as a child is accepted, then sample the bonus token.

    `uniform` draws from [0, 1).
    """
    path, trials, node = [0], [], 0
    while True:
        residual = scored.target_row(node)
        children = scored.tree.children(node)
        descended = False
        if children:
            offers = scored.offers(rule, node, residual, scored.draft_row(node))
            for child, offer in zip(children, offers, strict=True):
                # draft mass 0 is the rounding case of Offer.accept_prob: the target alone decides
                trials.append(Trial(child, uniform(), offer.target_mass, offer.draft_mass or 1e-300))
                if trials[-1].accepted:
                    path.append(child)
                    node, descended = child, True
                    break
                residual = offer.residual
        if not descended:
            return Walk(tuple(path), sample_row(residual, uniform()), tuple(trials))


class Stop(NamedTuple):
    """A node at which a walk from the leaves may end.

    Attributes:
        share: the chance that it ends here, given that it reaches the node.
        residual: float64 [V], what the bonus token is drawn from, up to a factor; None for the target's own row.
    """

    node: int
    share: float
    residual: np.ndarray | None


def stops(scored: ScoredTree, node: int = 0, share: float = 1.0) -> Iterator[Stop]:
    """Yield where a walk from the leaves may end, children before their parents and in the order drawn, the root last.

    Nodes below a child that is never kept are left out. `share` is how often the node or one below it is kept.
    """
    children, residual = scored.tree.children(node), None
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

    A token that the target finds less likely than the draft does can be compensated by the tokens below it, which a
    descent no longer has. A trial's target mass is the chance to keep the node with the whole path to it; the root is
    always kept, without a trial. Arguments as for `walk_tree`, with `traversal_rule`.
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
    return Walk(path, sample_row(residual, uniform()), tuple(trials))


WALKS: dict[Rule, Callable[..., Walk]] = {traversal_rule: walk_from_leaves}  # of every other rule: walk_tree


def walk_greedily(tree: TokenTree, tokens: Sequence[int], choice: Callable[[int], int]) -> Walk:
    """Descend to the child that equals the target's argmax; `choice`: node -> that token, asked once for each node."""
    path, trials, node = [0], [], 0
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
