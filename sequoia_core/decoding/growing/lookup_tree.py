"""The policy of trees made of text already seen: no draft model, next to no cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...design.profile import HardwareProfile
from ...models.protocol import LanguageModel
from ...native.text_index import MOST
from ..pass_times import SIZES, pass_times
from .growing_tree import GrowingTree
from .recipes import Controller, looked_up_gain
from .step_costs import LookUpBudget, StepCosts
from .text_index import TextIndex

PROFILED_SIZE = 64  # nodes at most where none are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTree(GrowingTree):
    """The policy that drafts what followed the same context before, in this text or in those of an index.

    A tree depends on committed text alone, so the top-k rule is exact for it at every temperature (SpecExec, arXiv
    2406.02532). The text under way is always looked through too; it is in the index only after `index.add`.

    Args:
        index: earlier texts; an empty one leaves the text under way.
        max_size: nodes of a tree at most, root included; no more than the profile has times for. With a size and no
            profile no cost is counted: every node with a chance of at least 0.005. With neither, a run first takes the
            times of the target (`pass_times`), as `untimed` says.
        profile: what verifying costs; the likeliest nodes are taken while they are worth it at the run's rate.
        temperature: of the run, as `for_run` sets it.
    """

    index: TextIndex = field(kw_only=False)
    max_size: int = None  # type: ignore[assignment]  # a whole number once it is made
    max_depth: int = 16
    profile: HardwareProfile | None = None
    untimed: bool = False
    temperature: float = 0.0
    beam: int = field(init=False, default=1)
    branch: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        if not isinstance(self.index, TextIndex):
            raise ValueError(f"index: found {type(self.index).__name__}, expected a TextIndex")
        if self.max_size is None:
            self.set(untimed=self.profile is None, max_size=SIZES[-1] if self.profile is None else PROFILED_SIZE)
        GrowingTree.__post_init__(self)
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
        self.set(branch=min(MOST, self.max_inner))

    @property
    def needs_draft(self) -> bool:
        return False

    @property
    def max_inner(self) -> int:
        return max(self.max_size - 1, 1)

    def costs(self, context: float | None = None) -> StepCosts | None:
        if self.profile is None:
            return None
        greedy = self.temperature == 0.0
        return StepCosts.without_draft(self.profile, self.max_size, context=context, greedy=greedy)

    @property
    def controller(self) -> Controller | None:
        gain = looked_up_gain(self.temperature)
        return None if self.profile is None else Controller(0.0, 0.0, looked_up_gain=gain)

    @property
    def look_up_budget(self) -> LookUpBudget | None:
        return None if self.profile is None else LookUpBudget(self.temperature)

    def timed(self, target: LanguageModel) -> LookupTree:
        """Return this policy, with the target's times where it needs them; streamed weights hide what nodes cost."""
        if not self.untimed or target.offload is not None:
            return self
        return replace(self, profile=pass_times(target), untimed=False)

    def for_run(self, target: LanguageModel, temperature: float) -> LookupTree:
        return replace(self.timed(target), temperature=temperature)


def profile_of_target(
    profiles: Iterable[HardwareProfile], *, target: str, dtype: str, offload: str | None
) -> HardwareProfile | None:
    """Return the first profile of this target, with any draft and device; None where there is none."""
    for profile in profiles:
        own = {"draft": profile.meta.get("draft", ""), "device": profile.device}
        if not profile.differences(target=target, dtype=dtype, offload=offload, **own):
            return profile
    return None
