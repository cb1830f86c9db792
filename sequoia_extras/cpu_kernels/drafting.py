"""Drafter for fixed trees with a draft that runs in `llama_x86.c`: one call per tree."""

from collections.abc import Sequence

import torch

from sequoia_core.decoding.drafting import DraftRun, DraftTree, LevelDrafter
from sequoia_core.decoding.sampling import (
    require_finite,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)

from .drafting_calls import DraftCall
from .kernel_session import CompiledSession

COMPILED_SAMPLINGS = (sample_without_replacement, sample_with_replacement, take_most_likely)


class CompiledDrafter(LevelDrafter):
    """Drafts a fixed tree in one call; given the same seed, it draws the same tokens as `LevelDrafter`."""

    def __init__(self, run: DraftRun) -> None:
        super().__init__(run)
        assert isinstance(self.session, CompiledSession) and self.fixed_plan is not None, "checked by `supports`"
        self._plan = self.fixed_plan
        self._call = DraftCall(
            self.session,
            self._plan.levels,
            drawn=run.draft_sampling is not take_most_likely,
            with_replacement=run.draft_sampling is sample_with_replacement,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
        )

    @staticmethod
    def supports(run: DraftRun) -> bool:
        is_compiled = isinstance(run.session, CompiledSession) and run.draft_sampling in COMPILED_SAMPLINGS
        return is_compiled and run.policy.fixed is not None

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        if self.plan_below(sequence) is not self._plan:
            return super().grow(sequence)
        root_position = len(sequence) - 1
        grown = self._call.grow(
            sequence[self.session.length :],
            root_position=root_position,
            temperature=self.run.sampling.temperature,
            generator=self.run.generator,
        )
        tensors = require_finite(grown, "draft")
        first_rows = self._call.first_rows
        return DraftTree(self._plan, root_position, *tensors, self._plan.cache_positions, first_rows=first_rows)
