"""SpecExec's trees (Svirschevski et al., NeurIPS 2024, arXiv 2406.02532): the draft's most probable continuations."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.protocol import Session
from ..tree_policy import TreePolicy
from ..verifiers import DraftSampling
from .expansion import DraftChances, TopKExpansion
from .growing import GrowingDrafter, GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecTree(GrowingTree):
    """The policy that takes, at every step, the nodes of largest cumulative draft probability.

    Every choice is made before the target draws, so sampling the target and following its token is exact.
    """

    def expansion_at_start(self, context: float | None = None) -> TopKExpansion:
        return TopKExpansion(self, DraftChances())


class SpecExecDrafter(GrowingDrafter):
    def __init__(self, session: Session, policy: SpecExecTree, **options) -> None:
        super().__init__(session, policy, **options)
        self._expansion = policy.expansion_at_start()

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return isinstance(policy, SpecExecTree)

    def expansion(self, context: int) -> TopKExpansion:
        return self._expansion
