"""Policies that grow a tree at every step from the draft, from text, or from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sequoia_core.decoding.pass_times import PASS_SIZES, pass_times
from sequoia_core.decoding.tree_policy import DynamicTree
from sequoia_core.decoding.verifiers import VERIFIERS, same_draft_sampling
from sequoia_core.models.protocol import LanguageModel
from sequoia_core.planning.profile import HardwareProfile

from .growing_tree import CalibratedTree, GrowingTree
from .index_memory import MAX_CANDIDATES
from .recipes import RECIPES, Controller, Recipe, best_static_tree, initial_lookup_gain
from .step_costs import LookUpBudget, StepCosts
from .text_index import TextIndex
from .top_k_expansion import LevelExpansion

PROFILED_SIZE = 64  # default maximum number of nodes if there is a profile


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecTree(GrowingTree):
    """Selects, at every step, the nodes with the largest cumulative draft probability (SpecExec).

    All nodes are selected before the target draws, so sampling from the target and following its token is exact.
    Svirschevski et al., NeurIPS 2024, arXiv 2406.02532.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamTree(GrowingTree):
    """Grows the trees of SGLang, TensorRT-LLM and OpenVINO GenAI: see `beams`. `beam` and `branch` are their width."""

    expansion = LevelExpansion


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTree(CalibratedTree):
    """Drafts, at every step, the nodes whose expected tokens outweigh their profiled cost.

    Related work: SpecExec, EAGLE-2 (arXiv 2406.16858); for other kinds of drafters, BASTION (2605.29727), CaDDTree
    (2606.01813), CAST (2510.26577) and Yggdrasil.

    Args:
        max_size: if weights are streamed, limited to the size of the best planned tree.
        max_depth: None for 12, or 24 if weights are streamed, because drafting then overlaps with reading.
        recipe: "deterministic" selects the draft's most likely tokens and prunes the tree; "sampled" draws children
            without replacement and decides before each draw whether to make it; "auto" is "static" unless the
            calibration predicts that another recipe is 10 % faster (faster at all if weights are streamed).
    """

    recipes = RECIPES
    default_depth = 12
    limit_to_planned = True

    @property
    def verifiers(self) -> tuple[str, ...]:
        return same_draft_sampling(self.active_recipe.verifier) if self.fixed is None else tuple(VERIFIERS)

    @property
    def initial_rate(self) -> tuple[float, float]:
        expectation = self.expected[self.recipe]
        return expectation.tokens_per_step, expectation.controller.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTree(GrowingTree):
    """Drafts the continuations of earlier occurrences of the current context in the current text and in an index.

    A tree depends only on committed text, so the top-k rule is exact for it at every temperature, as with SpecExec.
    The current text is added to the index only by `index.add`.

    Args:
        index: earlier texts; may be empty.
        max_size: maximum number of nodes in a tree, including the root; limited to what the profile covers. If it is
            given without a profile, costs are ignored and all nodes with a probability of at least 0.005 are drafted.
            With neither, each run first times the target (`pass_times`); `untimed` is then True.
        profile: costs of verification; nodes are drafted, likeliest first, while they are worth it at the run's speed.
        temperature: temperature of the run, set by `for_run`.
    """

    index: TextIndex = field(kw_only=False)
    max_size: int = None  # type: ignore[assignment]  # set during construction
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
            self.set(untimed=self.profile is None, max_size=PASS_SIZES[-1] if self.profile is None else PROFILED_SIZE)
        GrowingTree.__post_init__(self)
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
        self.set(branch=min(MAX_CANDIDATES, self.max_inner))

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
        return StepCosts.from_profile(self.profile, self, drafted=False, context=context, greedy=greedy)

    @property
    def controller(self) -> Controller | None:
        lookup_gain = initial_lookup_gain(self.temperature)
        return None if self.profile is None else Controller(0.0, 0.0, lookup_gain=lookup_gain)

    @property
    def look_up_budget(self) -> LookUpBudget | None:
        return None if self.profile is None else LookUpBudget(self.temperature)

    def with_pass_times(self, target: LanguageModel) -> LookupTree:
        """Return this policy with the target's pass times if it needs them; streaming hides the nodes' costs."""
        if not self.untimed or target.offload is not None:
            return self
        return replace(self, profile=pass_times(target), untimed=False)

    def for_run(self, target: LanguageModel, temperature: float) -> LookupTree:
        return replace(self.with_pass_times(target), temperature=temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridTree(CalibratedTree):
    """Combines proposals from the draft model and from text in one tree.

    Args:
        max_size: None for 64, or 256 if weights are streamed; limited to what the profile covers.
        max_depth: None for 16, or 24 if weights are streamed.
        recipe: "topk" adds the draft's most likely tokens to the looked-up ones, verified by the top-k rule; "in_turn"
            draws tokens that were not looked up, verified by Sequoia's rule; "static" uses the best planned tree at
            every step, without look-ups. "auto" becomes "topk" at temperature 0. Otherwise it becomes the recipe whose
            drafted part alone has the highest expected speed by the calibration (without a profile, the most tokens),
            but "static" unless the advantage exceeds the usual overestimate. If an `AdaptiveTree` would draft nothing,
            "auto" drafts nothing either.

    Attributes:
        expected: recipe -> expected performance of its drafted part alone, for the recipes that were compared.
        lookup_only: whether runs use a `LookupTree`, because the draft is not worth its cost.
    """

    recipes: ClassVar[Mapping[str, Recipe]] = {"topk": RECIPES["deterministic"], "in_turn": RECIPES["sampled"]}
    default_depth = 16
    grown_bonus = 1.03

    index: TextIndex = field(kw_only=False)
    lookup_only: bool = field(init=False, default=False)

    def choose_recipe(self) -> None:
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
            if self.recipe == "auto" and not self._draft_pays(self.profile):
                self.set(recipe="topk", lookup_only=True)
        if self.recipe == "auto" and self.calibration.temperature == 0.0:
            self.set(recipe="topk")
        CalibratedTree.choose_recipe(self)

    def _draft_pays(self, profile: HardwareProfile) -> bool:
        """Return whether, at profiled costs, some drafted tree is expected to be faster than drafting nothing."""
        if best_static_tree(self.active_recipe, self, self.calibration, profile, self.planned)[0].size > 1:
            return True
        adaptive = AdaptiveTree(profile=profile, calibration=self.calibration, planned=self.planned)
        return adaptive.fixed is None or adaptive.fixed.size > 1

    @property
    def needs_draft(self) -> bool:
        return not self.lookup_only

    def for_run(self, target: LanguageModel, temperature: float) -> DynamicTree:
        if not self.lookup_only:
            return self
        trees = LookupTree(self.index, max_size=self.max_size, max_depth=self.max_depth, profile=self.profile)
        return trees.for_run(target, temperature)

    @property
    def candidates(self) -> tuple[str, ...]:
        return {"auto": tuple(self.recipes), "in_turn": ("in_turn",)}.get(self.recipe, ())

    @property
    def max_children(self) -> int:
        # A node has up to `branch` looked-up and as many drafted children.
        return 2 * self.branch
