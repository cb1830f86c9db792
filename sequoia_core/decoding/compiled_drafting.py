"""A drafter that fills a whole tree in one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..models.protocol import Session
from ..native.drafting_calls import DraftCall
from ..native.llama_x86 import CompiledSession
from .drafting import DraftTree, LevelDrafter
from .sampling import finite, sample_with_replacement, sample_without_replacement, take_most_likely
from .tree_policy import TreePolicy
from .verifiers import DraftSampling

DRAFT_SAMPLINGS: dict[DraftSampling, str] = {  # those that compiled code has, with its names
    sample_without_replacement: "without replacement",
    sample_with_replacement: "with replacement",
    take_most_likely: "most likely",
}


class CompiledDrafter(LevelDrafter):
    """Drafts a fixed tree in one call; equal seeds draw the tokens that `LevelDrafter` draws on the same session."""

    def __init__(self, session: CompiledSession, policy: TreePolicy, **options) -> None:
        super().__init__(session, policy, **options)
        assert self.fixed_plan is not None
        self._plan = self.fixed_plan
        self._call = DraftCall(
            session, self._plan.levels, draft_sampling=DRAFT_SAMPLINGS[self.draft_sampling],
            top_p=self.sampling.top_p, top_k=self.sampling.top_k,
        )  # fmt: skip

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return policy.fixed is not None and isinstance(session, CompiledSession) and draft_sampling in DRAFT_SAMPLINGS

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        if self.plan_below(sequence) is not self._plan:
            return super().grow(sequence)
        root_position = len(sequence) - 1
        grown = self._call.grow(
            sequence[self.session.length :], root_position=root_position, temperature=self.sampling.temperature,
            generator=self.generator,
        )  # fmt: skip
        return DraftTree(
            self._plan, root_position, *finite(grown, "draft"), self._plan.cache_positions,
            first_rows=self._call.first_rows,
        )  # fmt: skip
