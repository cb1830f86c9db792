"""A drafter that fills a whole tree in one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..models.llama_amx import AmxSession, CompiledDraft
from ..models.protocol import Session
from .drafting import Draft
from .plan import TreePlan
from .sampling import SamplingConfig, finite, sample_with_replacement, sample_without_replacement, take_most_likely
from .verifiers import Fill

FILLS = {  # what compiled code can do in one call, by the function that does the same in Python
    sample_without_replacement: "without replacement",
    sample_with_replacement: "with replacement",
    take_most_likely: "most likely",
}


class CompiledDrafter:
    """Drafts a tree in one call; equal seeds draw the tokens that `LevelDrafter` draws on the same session.

    Args:
        session: of a model that runs compiled, see `supports`.
        fill, sampling, context, generator: as for `LevelDrafter`.
    """

    def __init__(
        self,
        session: AmxSession,
        plan: TreePlan,
        *,
        fill: Fill,
        sampling: SamplingConfig,
        context: int,
        generator: torch.Generator,
    ) -> None:
        self.session, self.plan, self.context = session, plan, context
        self.temperature, self.generator = sampling.temperature, generator
        self._grown = CompiledDraft(session, plan.levels, fill=FILLS[fill])

    @staticmethod
    def supports(session: Session, fill: Fill) -> bool:
        """Whether this drafter can draw children that way from that session's model."""
        return isinstance(session, AmxSession) and fill in FILLS

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> Draft:
        self.root_slot = len(sequence) - 1
        grown = self._grown.grow(
            sequence[self.session.length :], place=self.root_slot, limit=self.context, temperature=self.temperature,
            generator=self.generator,
        )  # fmt: skip
        tokens, probs, rows = finite(grown, "draft")
        return Draft(self.plan.tree, tokens, probs, rows)

    def commit(self, path: tuple[int, ...]) -> None:
        self.session.commit(self.root_slot, self.plan.inner_path(path))

    def wait(self) -> None:
        pass  # compiled code is done when it returns
