"""SpecExec's trees (Svirschevski et al., NeurIPS 2024, arXiv 2406.02532): the draft's most probable continuations."""

from __future__ import annotations

from dataclasses import dataclass

from .growing_tree import GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecTree(GrowingTree):
    """The policy that takes, at every step, the nodes of largest cumulative draft probability.

    Every choice is made before the target draws, so sampling the target and following its token is exact.
    """
