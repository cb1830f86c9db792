"""Tree policies, which choose each step's tree. A `TokenTree` stands for the policy that always uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..acceptance.conditions import SPECINFER, Conditions
from ..acceptance.vector import AcceptanceVector
from ..models.protocol import LanguageModel
from ..planning.prediction import Prediction
from ..planning.profile import HardwareProfile
from ..trees.plain import independent_chains
from ..trees.tree import TokenTree
from .verifiers import VERIFIERS

ROOT_ONLY = TokenTree(np.array([-1]))


class TreePolicy(Protocol):
    """The properties of a run's trees that are known before any of them is drafted.

    Attributes:
        max_size: maximum number of nodes in a tree, including the root.
        max_inner: maximum number of inner nodes; each takes one of the draft's rows and one position in its cache.
        max_depth: maximum number of edges from the root.
        max_children: maximum number of children of a node.
        fixed: the tree used in every step; None if the tree varies.
        needs_draft: whether a draft model is needed to fill the trees.
        looks_up: whether the trees depend on earlier text.
        largest_token: the largest token id in the lookup index; -1 without one.
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
        """Describe how `wanted` differs from the trees' planning conditions; the output is exact in any case."""
        return []

    def for_run(self, target: LanguageModel, temperature: float) -> TreePolicy:
        """Return the policy adapted to a run of this target at this temperature."""
        return self


class DynamicTree(TreePolicy, Protocol):
    """A policy whose trees differ from step to step, or a fixed tree chosen as the better alternative.

    Attributes:
        profile: costs of the parts of a step; None if costs are ignored.
        recipe: name of the set of selection rules; None if there is only one set.
    """

    __slots__ = ()

    @property
    def profile(self) -> HardwareProfile | None:
        return None

    @property
    def recipe(self) -> str | None:
        return None

    def for_run(self, target: LanguageModel, temperature: float) -> DynamicTree:
        return self

    def predict(
        self,
        acceptance: AcceptanceVector,
        profile: HardwareProfile,
        *,
        context: float | None = None,
        prompts: int | None = None,
    ) -> Prediction:
        """Predict decoding with these trees; the vector must be calibrated. See `prediction.predict` for arguments."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTree(TreePolicy):
    """The policy that always uses one tree; every verifier is exact for it.

    Attributes:
        verifiers: the verifiers to allow; a published method may allow only its own.
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


# The 5 × 8 baseline of the Sequoia paper: five chains of eight tokens with SpecInfer's sampling and rule.
SPECINFER_TREE = FixedTree(independent_chains(5, 8), verifiers=(SPECINFER,))


def as_policy(tree: TokenTree | TreePolicy) -> TreePolicy:
    """Return a policy unchanged; wrap a tree in a `FixedTree`."""
    return FixedTree(tree) if isinstance(tree, TokenTree) else tree
