"""Base classes for policies that grow trees, with and without calibrated probabilities and profiled costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sequoia_core.acceptance.calibration import Calibration
from sequoia_core.acceptance.conditions import TOPK, Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.tree_policy import DynamicTree, FixedTree
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.planning.prediction import Prediction, predict
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.optimal import check_whole_number
from sequoia_core.trees.tree import MAX_TREE_SIZE, TokenTree

from .expansion import DraftChances, TokenCosts, TreeBounds
from .recipes import (
    STATIC,
    Controller,
    Expansions,
    Expectation,
    Recipe,
    best_static_tree,
    estimate_recipe,
    initial_lookup_gain,
    predict_growing,
)
from .running_lookup import LookUp
from .step_costs import LookUpBudget, StepCosts
from .text_index import TextIndex
from .top_k_expansion import TopKExpansion

# Costs usually keep trees much smaller.
DEFAULT_SIZE = 64
STREAMED_SIZE = 256
STREAMED_DEPTH = 24
# Grown trees must be predicted to be faster by this factor, since calibrations overestimate their tokens by up to 13 %.
MIN_ADVANTAGE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTree(TreeBounds, DynamicTree):
    """Base class for policies that grow a new tree at every step. A policy contains its own bounds."""

    expansion: ClassVar[type[TopKExpansion]] = TopKExpansion

    beam: int = 16
    branch: int = 16

    def __post_init__(self) -> None:
        for name in ("max_size", "max_depth", "beam", "branch"):
            check_whole_number(name, getattr(self, name), 1, MAX_TREE_SIZE)

    def set(self, **fields) -> None:
        """Set fields of the frozen policy while it is being constructed."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def max_inner(self) -> int:
        return self.max_read

    @property
    def max_children(self) -> int:
        return self.branch

    @property
    def looks_up(self) -> bool:
        return self.index is not None

    @property
    def largest_token(self) -> int:
        return -1 if self.index is None else self.index.largest_token

    @property
    def verifiers(self) -> tuple[str, ...]:
        # Most policies select the draft's most likely tokens, which this rule verifies.
        return (TOPK,)

    @property
    def index(self) -> TextIndex | None:
        """The texts in which nodes are looked up; None without look-ups."""
        return None

    def costs(self, context: float | None = None) -> StepCosts | None:
        """Return the profiled costs with `context` tokens in the cache; None if costs are not considered."""
        return None

    @property
    def controller(self) -> Controller | None:
        """A run's initial controller; None if nothing adapts."""
        return None

    @property
    def look_up_budget(self) -> LookUpBudget | None:
        """The budget that pauses look-ups; None to look up at every step."""
        return None

    @property
    def initial_rate(self) -> tuple[float, float] | None:
        """Initial tokens per step and per second, used to price nodes; None for autoregressive rates."""
        return None

    def expansions(self) -> Expansions:
        """Return a function that creates each step's expansion policy."""

        def make_expansion(
            controller: Controller | None, token_costs: TokenCosts | None = None, look_up: LookUp | None = None
        ) -> TopKExpansion:
            return self.expansion(self, DraftChances(), token_costs=token_costs, look_up=look_up)

        return make_expansion

    @property
    def selection(self) -> str:
        """How children are selected: a key of `calibration.TABLE_GROUPS`."""
        return "most likely"

    def initial_expansion(self, context: float | None = None) -> TopKExpansion:
        """Return the expansion policy at the beginning of a run, with `context` tokens in the cache."""
        costs = self.costs(context)
        rate = self.initial_rate
        token_costs = None if costs is None or rate is None else costs.token_costs(rate[1])
        return self.expansions()(self.controller, token_costs)

    def predict(
        self,
        acceptance: AcceptanceVector,
        profile: HardwareProfile,
        *,
        context: float | None = None,
        prompts: int | None = None,
    ) -> Prediction:
        if self.fixed is not None:
            return predict(self.fixed, acceptance, profile, context=context, prompts=prompts)
        assert acceptance.calibration is not None, "required by `DynamicTree.predict`"
        return predict_growing(
            self.initial_expansion(context),
            self,
            acceptance.calibration,
            profile,
            selection=self.selection,
            context=context,
            prompts=prompts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedTree(GrowingTree):
    """Base class for policies that use calibrated acceptance probabilities and profiled costs.

    Args:
        profile: costs of a step's parts. None to ignore costs and always grow the largest tree that the bounds allow.
        calibration: acceptance probabilities given the draft's probabilities, measured with this pair at the run's
            temperature (`AcceptanceVector.calibration`).
        recipe: a key of `recipes`, "static" for the best planned tree at every step, or "auto" for the choice with the
            highest expected speed, with a margin in favor of the planned tree.
        holds_for: conditions under which the calibration was measured (`AcceptanceVector.holds_for`); `decode` warns if
            the run's conditions differ. None to compare only the temperature.
        planned: tree for the recipe "static", as returned by `plan_tree`; None for the best one by the calibration.
        max_size: None for 64, or 256 if weights are streamed (computing larger trees takes longer than reading), but
            not more than the profile covers.
        branch: reduced to the calibration's number of ranks.

    Attributes:
        fixed: the tree of every step if the recipe is "static", which then also sets the bounds; otherwise None.
        expected: recipe -> its expected performance, for the recipes that were compared.
    """

    # The first recipe is for temperature 0, the second one for higher temperatures.
    recipes: ClassVar[Mapping[str, Recipe]]
    default_depth: ClassVar[int]
    grown_bonus: ClassVar[float] = 1.0  # factor on the estimated speed of grown trees
    limit_to_planned: ClassVar[bool] = False  # whether the planned tree limits the size if weights are streamed

    profile: HardwareProfile | None = field()
    calibration: Calibration
    holds_for: Conditions | None = None
    planned: TokenTree | None = None
    max_size: int = None  # type: ignore[assignment]  # set during construction
    max_depth: int = None  # type: ignore[assignment]
    branch: int = 8
    recipe: str = "auto"
    fixed: TokenTree | None = field(init=False, default=None)
    expected: dict[str, Expectation] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.calibration, Calibration):
            raise ValueError(
                f"calibration: found {type(self.calibration).__name__}, expected the calibration of a vector measured "
                "with measure_acceptance"
            )
        if self.recipe not in ("auto", *self.recipes, STATIC):
            raise ValueError(f"recipe: found {self.recipe!r}, expected auto, {', '.join(self.recipes)} or {STATIC}")
        if self.recipe == STATIC and self.profile is None:
            raise ValueError("recipe: found static without a profile, expected a profile to determine the best tree")
        self._set_default_bounds()
        # super() fails here, since it refers to the class before slots=True replaced it.
        GrowingTree.__post_init__(self)
        self.set(branch=min(self.branch, self.calibration.ranks))
        self.choose_recipe()

    def _set_default_bounds(self) -> None:
        if self.max_size is None:
            size = STREAMED_SIZE if self.streams else DEFAULT_SIZE
            self.set(max_size=size if self.profile is None else min(size, self.profile.max_size))
        if self.max_depth is None:
            self.set(max_depth=max(self.default_depth, STREAMED_DEPTH) if self.streams else self.default_depth)

    def choose_recipe(self) -> None:
        """Choose the recipe with the highest expected speed, including the planned tree."""
        static_allowed = self.recipe in ("auto", STATIC)
        bounded = self.streams and self.limit_to_planned
        planned: tuple[TokenTree, Expectation] | None = None
        if self.profile is not None and (bounded or static_allowed):
            planned = best_static_tree(self.active_recipe, self, self.calibration, self.profile, self.planned)
            if bounded:
                self.set(max_size=min(self.max_size, max(planned[0].size, 2)))
        costs = self.costs()
        expected = {
            name: estimate_recipe(self.recipes[name], self, self.calibration, costs) for name in self.candidates
        }
        weights = dict.fromkeys(expected, self.grown_bonus)
        if planned is not None and static_allowed:
            expected[STATIC] = planned[1]
            weights[STATIC] = 1.0 if self.streams else MIN_ADVANTAGE
        self.set(expected=expected)
        if expected:
            self.set(recipe=max(expected, key=lambda name: expected[name].value * weights[name]))
        if self.recipe == STATIC:
            assert planned is not None, "`static` was compared"
            tree = planned[0]
            self.set(fixed=tree, max_size=tree.size, max_depth=tree.depth, branch=FixedTree(tree).max_children)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The recipes whose expected performance must be estimated."""
        return tuple(name for name in self.recipes if self.recipe in ("auto", name))

    @property
    def active_recipe(self) -> Recipe:
        greedy, drawn = self.recipes.values()
        return self.recipes.get(self.recipe, greedy if self.calibration.temperature == 0.0 else drawn)

    @property
    def selection(self) -> str:
        return self.active_recipe.selection

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (self.active_recipe.verifier,) if self.fixed is None else tuple(VERIFIERS)

    @property
    def max_inner(self) -> int:
        return self.max_read if self.fixed is None else FixedTree(self.fixed).max_inner

    @property
    def streams(self) -> bool:
        """Whether weights are streamed, so that larger and deeper trees cost little."""
        return self.profile is not None and self.profile.streaming is not None

    def costs(self, context: float | None = None) -> StepCosts | None:
        if self.profile is None:
            return None
        greedy = self.calibration.temperature == 0.0
        return StepCosts.from_profile(self.profile, self, context=context, greedy=greedy)

    @property
    def controller(self) -> Controller:
        expectation = self.expected.get(self.recipe)
        controller = Controller(0.0, 0.0) if expectation is None else expectation.controller
        return controller._replace(lookup_gain=initial_lookup_gain(self.calibration.temperature))

    def expansions(self) -> Expansions:
        return self.active_recipe.expansions(self, self.calibration)

    def differences(self, wanted: Conditions) -> list[str]:
        measured = self.holds_for or replace(wanted, temperature=self.calibration.temperature)
        # The verifier may differ, since calibrations cover both recipes.
        return measured.differences(replace(wanted, verifier=measured.verifier))
