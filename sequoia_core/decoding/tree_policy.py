"""Tree policies: what decides the tree of each step. A `TokenTree` is the policy with the same tree at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..design.conditions import SPECINFER, Conditions
from ..design.plain_trees import independent_chains
from ..design.tree import TokenTree
from ..models.protocol import LanguageModel
from .verifiers import VERIFIERS

ROOT_ONLY = TokenTree(np.array([-1]))


class TreePolicy(Protocol):
    """What is known of a run's trees before any is drafted.

    Attributes:
        max_size: nodes of one tree at most, root included.
        max_inner: nodes with children at most; each has a row of the draft and a position in its cache.
        max_depth: edges from the root at most.
        max_children: children of one node at most.
        fixed: the tree of every step, None where steps differ.
        needs_draft: whether trees take a draft model to fill.
        looks_up: whether trees depend on text already seen.
        largest_token: the largest id in texts that trees are looked up in; -1 where there are none.
        verifiers: names of the verifiers that are exact for these trees; the first is the default.
    """

    __slots__ = ()

    @property
    def max_size(self) -> int: ...
    @property
    def max_inner(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def max_children(self) -> int: ...
    @property
    def verifiers(self) -> tuple[str, ...]: ...

    @property
    def fixed(self) -> TokenTree | None:
        return None

    @property
    def needs_draft(self) -> bool:
        return self.fixed is None or self.fixed.size > 1

    @property
    def looks_up(self) -> bool:
        return False

    @property
    def largest_token(self) -> int:
        return -1

    def differences(self, wanted: Conditions) -> list[str]:
        """Return how `wanted` differs from the conditions that the trees were made for; output stays exact."""
        return []

    def for_run(self, target: LanguageModel, temperature: float) -> TreePolicy:
        """Return the policy as a run of that target at that temperature uses it."""
        return self


@dataclass(frozen=True, slots=True)
class FixedTree(TreePolicy):
    """The policy of a tree that was planned beforehand; every verifier is exact for it.

    Attributes:
        verifiers: those that may decide; fewer than all where a method is meant with its own rule.
    """

    fixed: TokenTree = field()
    verifiers: tuple[str, ...] = field(default_factory=lambda: tuple(VERIFIERS))

    @property
    def max_size(self) -> int:
        return self.fixed.size

    @property
    def max_inner(self) -> int:
        return int(np.count_nonzero(self.fixed.child_counts))

    @property
    def max_depth(self) -> int:
        return self.fixed.depth

    @property
    def max_children(self) -> int:
        return int(self.fixed.child_counts.max(initial=0))


# the 5 × 8 trees that the Sequoia paper compares with: five chains of eight tokens, drawn and verified SpecInfer's way
SPECINFER_TREE = FixedTree(independent_chains(5, 8), verifiers=(SPECINFER,))


def policy_of(tree: TokenTree | TreePolicy) -> TreePolicy:
    """Return a policy unchanged, and for a tree the policy that always uses it."""
    return FixedTree(tree) if isinstance(tree, TokenTree) else tree
