"""Walks: how verification descends a drafted tree, one child after the other, and what it decided.

Knows the tree and a rule for one node (`verifiers`), but not which models the rows came from. V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..design.tree import TokenTree
from .sampling import sample_row
from .verifiers import Rule


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


def walk_tree(
    tree: TokenTree,
    tokens: Sequence[int],
    *,
    target_row: Callable[[int], np.ndarray],
    draft_row: Callable[[int], np.ndarray],
    rule: Rule,
    uniform: Callable[[], float],
) -> Walk:
    """Descend from the root as long as a child is accepted, then sample the bonus token.

    Args:
        tokens: token of every node [n].
        target_row, draft_row: node -> float64 [V]; asked only for the nodes visited.
        uniform: fresh draws from [0, 1).
    """
    path, trials, node = [0], [], 0
    while True:
        left = target_row(node)
        children = tree.children(node)
        descended = False
        if children:
            for child, offer in zip(
                children, rule(left, draft_row(node), [tokens[child] for child in children]), strict=True
            ):
                # a zero draft mass is the rounding case of Offer.accept_prob: decide by the target alone
                trials.append(Trial(child, uniform(), offer.target_mass, offer.draft_mass or 1e-300))
                if trials[-1].accepted:
                    path.append(child)
                    node, descended = child, True
                    break
                left = offer.rest
        if not descended:
            return Walk(tuple(path), sample_row(left, uniform()), tuple(trials))


def walk_greedily(tree: TokenTree, tokens: Sequence[int], choice: Callable[[int], int]) -> Walk:
    """Descend to the child that equals the target's argmax.

    Args:
        tokens: token of every node [n].
        choice: node -> the target's most likely next token; asked once for each node visited.
    """
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
