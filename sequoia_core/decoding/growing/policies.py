"""The policies of trees that grow at every step: by the draft, by text already seen, or by both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...design.profile import HardwareProfile
from ...models.protocol import LanguageModel
from ...native.text_index import MOST
from ..pass_times import SIZES, pass_times
from ..tree_policy import TreePolicy
from ..verifiers import VERIFIERS, same_draft_sampling
from .growing_tree import CalibratedTree, GrowingTree
from .recipes import RECIPES, Controller, best_static, looked_up_gain
from .step_costs import LookUpBudget, StepCosts
from .text_index import TextIndex

PROFILED_SIZE = 64  # nodes at most where none are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecTree(GrowingTree):
    """The policy that takes, at every step, the nodes of largest cumulative draft probability (SpecExec).

    Every choice is made before the target draws, so sampling the target and following its token is exact. Svirschevski
    et al., NeurIPS 2024, arXiv 2406.02532.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTree(CalibratedTree):
    """The policy that drafts, at every step, the nodes whose expected tokens outweigh their cost, by a profile.

    Related: SpecExec, EAGLE-2 2406.16858, and for other drafters BASTION 2605.29727, CaDDTree 2606.01813, CAST
    2510.26577, Yggdrasil.

    Args:
        max_size: where weights stream in, no more than the best planned tree has.
        max_depth: None for 12, and for 24 where weights stream in, since drafting overlaps with reading.
        recipe: "deterministic" takes the draft's most likely tokens and prunes; "sampled" draws children without
            replacement and decides before each draw. "auto" is "static" unless another is expected to be a tenth
            faster by the calibration (at all faster where weights stream in).
    """

    recipes, usual_depth, streams_planned = RECIPES, 12, True

    @property
    def verifiers(self) -> tuple[str, ...]:
        return same_draft_sampling(self.rules.verifier) if self.fixed is None else tuple(VERIFIERS)

    @property
    def start(self) -> tuple[float, float]:
        known = self.expected[self.recipe]
        return known.tokens_per_step, known.controller.theta


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTree(GrowingTree):
    """The policy that drafts what followed the same context before, in this text or in those of an index.

    A tree depends on committed text alone, so the top-k rule is exact for it at every temperature, as for SpecExec's.
    The text under way is always looked through too; it is in the index only after `index.add`.

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
        return StepCosts.of_profile(self.profile, self, drafted=False, context=context, greedy=greedy)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridTree(CalibratedTree):
    """The policy by which the draft model and text already seen propose for the same tree.

    Args:
        max_size: None for 64, for 256 where weights stream in; no more than was profiled.
        max_depth: None for 16, and for 24 where weights stream in.
        recipe: "topk" adds the draft's most likely tokens to those looked up, verified by the top-k rule; "in_turn"
            draws from what the draft's row has besides the looked-up tokens, verified by Sequoia's rule; "static" looks
            nothing up and uses the best planned tree at every step. "auto" becomes "topk" at temperature 0, otherwise
            the one whose drafted part alone has the highest expected speed (without a profile, tokens) by the
            calibration; "static" unless that is ahead by more than such expectations promise too much. Where an
            `AdaptiveTree` would draft nothing, "auto" does not either.

    Attributes:
        expected: recipe -> what its drafted part alone is expected to do, where that was asked.
        alone: whether the draft does not pay, so that runs go by a `LookupTree`.
    """

    recipes, usual_depth, grown_gain = {"topk": RECIPES["deterministic"], "in_turn": RECIPES["sampled"]}, 16, 1.03

    index: TextIndex = field(kw_only=False)
    alone: bool = field(init=False, default=False)

    def choose(self) -> None:
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
            if self.recipe == "auto" and not self._draft_pays(self.profile):
                self.set(recipe="topk", alone=True)
        if self.recipe == "auto" and self.calibration.temperature == 0.0:
            self.set(recipe="topk")
        CalibratedTree.choose(self)

    def _draft_pays(self, profile: HardwareProfile) -> bool:
        """Say whether some tree that the draft fills is expected to be faster than none, by profiled costs."""
        if best_static(self.rules, self, self.calibration, profile, self.planned)[0].size > 1:
            return True
        adaptive = AdaptiveTree(profile=profile, calibration=self.calibration, planned=self.planned)
        return adaptive.fixed is None or adaptive.fixed.size > 1

    @property
    def needs_draft(self) -> bool:
        return not self.alone

    def for_run(self, target: LanguageModel, temperature: float) -> TreePolicy:
        if not self.alone:
            return self
        trees = LookupTree(self.index, max_size=self.max_size, max_depth=self.max_depth, profile=self.profile)
        return trees.for_run(target, temperature)

    @property
    def asked(self) -> tuple[str, ...]:
        return {"auto": tuple(self.recipes), "in_turn": ("in_turn",)}.get(self.recipe, ())

    @property
    def max_children(self) -> int:
        return 2 * self.branch  # looked-up ones and the draft's


def profile_of_target(
    profiles: Iterable[HardwareProfile], *, target: str, dtype: str, offload: str | None
) -> HardwareProfile | None:
    """Return the first profile of this target, with any draft and device; None where there is none."""
    for profile in profiles:
        own = {"draft": profile.meta.get("draft", ""), "device": profile.device}
        if not profile.differences(target=target, dtype=dtype, offload=offload, **own):
            return profile
    return None
