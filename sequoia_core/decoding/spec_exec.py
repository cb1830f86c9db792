"""SpecExec's trees (Svirschevski et al., NeurIPS 2024, arXiv 2406.02532): the most probable continuations by the draft.

The nodes with the largest cumulative draft probability, as many as the budget holds. Every choice is made before the
target draws anything, so sampling the target and following the edge, where there is one, keeps its distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..design.conditions import TOPK
from ..design.shaping import BestFirst, ShapeBounds
from ..models.protocol import Session
from .growing import GrowingDrafter
from .tree_policy import TreePolicy
from .verifiers import Fill


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecTree:
    """The policy that takes, at every step, the nodes of largest cumulative draft probability.

    Drafting stops early when nothing better than the worst node kept can come.

    Args:
        max_size: nodes, root included.
        max_depth: edges from the root, and draft passes of one step.
        beam: nodes that one draft pass reads.
        branch: children of one node.

    Raises:
        ValueError: naming the bound, what was found and what was expected.
    """

    max_size: int
    max_depth: int
    beam: int = 16
    branch: int = 16
    fixed = None

    def __post_init__(self) -> None:
        _ = self.bounds

    @property
    def bounds(self) -> ShapeBounds:
        return ShapeBounds(self.max_size, self.max_depth, self.beam, self.branch)

    @property
    def max_inner(self) -> int:
        return self.bounds.most_read

    @property
    def max_children(self) -> int:
        return self.branch

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (TOPK,)


class SpecExecDrafter(GrowingDrafter):
    """Grows the trees of a `SpecExecTree`."""

    def __init__(self, session: Session, policy: SpecExecTree, **options) -> None:
        super().__init__(session, policy, **options)
        self._shaper = BestFirst(policy.bounds, chance=np.asarray)  # the draft's own probability, as it is

    @staticmethod
    def supports(session: Session, policy: TreePolicy, fill: Fill) -> bool:
        return isinstance(policy, SpecExecTree)

    def shaper(self, context: int) -> BestFirst:
        return self._shaper
