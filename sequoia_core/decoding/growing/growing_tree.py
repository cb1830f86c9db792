"""What policies of trees that grow have in common; those that go by calibrated chances and profiled costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...design.acceptance import AcceptanceVector
from ...design.calibration import Calibration
from ...design.conditions import TOPK, Conditions
from ...design.optimal_trees import check_whole
from ...design.prediction import Prediction, predict
from ...design.profile import HardwareProfile
from ...design.tree import MAX_SIZE, TokenTree
from ..tree_policy import FixedTree, TreePolicy
from ..verifiers import VERIFIERS
from .expansion import DraftChances, TokenCosts, TreeBounds
from .recipes import (
    STATIC,
    Controller,
    Expansions,
    Expectation,
    Recipe,
    best_static,
    expectation,
    looked_up_gain,
    predict_growing,
)
from .running_lookup import LookUp
from .step_costs import LookUpBudget, StepCosts
from .text_index import TextIndex
from .top_k_expansion import TopKExpansion

SIZE = 64  # of the largest trees; costs keep them well below
STREAMED_SIZE, STREAMED_DEPTH = 256, 24
LEAST_ADVANTAGE = 1.1  # calibrations promise grown trees up to 13 % more tokens than come


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTree(TreeBounds, TreePolicy):
    """What policies of trees that grow have in common: they are their own bounds, and no step's tree is fixed."""

    beam: int = 16
    branch: int = 16

    def __post_init__(self) -> None:
        for name in ("max_size", "max_depth", "beam", "branch"):
            check_whole(name, getattr(self, name), 1, MAX_SIZE)

    def set(self, **fields) -> None:
        """Set fields while the policy is made."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def max_inner(self) -> int:
        return self.most_read

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
        return (TOPK,)  # of the draft's most likely tokens, which most of them take

    @property
    def index(self) -> TextIndex | None:
        """Texts in which nodes are looked up; None where none are."""
        return None

    @property
    def profile(self) -> HardwareProfile | None:
        """What the parts of a step cost; None counts no cost."""
        return None

    def costs(self, context: float | None = None) -> StepCosts | None:
        """Return the profiled costs with so many tokens in the cache; None where none are counted."""
        return None

    @property
    def controller(self) -> Controller | None:
        """The controller that a run begins with; None where nothing is corrected."""
        return None

    @property
    def look_up_budget(self) -> LookUpBudget | None:
        """What tells a run when to look nothing up; None looks up at every step."""
        return None

    @property
    def start(self) -> tuple[float, float] | None:
        """Tokens per step and per second at which nodes are paid for first; None begins as autoregressive decoding."""
        return None

    def expansions(self) -> Expansions:
        """Return what gives each step its expansion policy."""

        def expansion(
            controller: Controller | None, token_costs: TokenCosts | None = None, look_up: LookUp | None = None
        ) -> TopKExpansion:
            return TopKExpansion(self, DraftChances(), token_costs=token_costs, look_up=look_up)

        return expansion

    @property
    def kind(self) -> str:
        """Which tables of a calibration apply to its children, see `design.calibration.KINDS`."""
        return "most likely"

    def expansion_at_start(self, context: float | None = None) -> TopKExpansion:
        """Return the expansion policy at the start of a run, with so many tokens in the cache."""
        costs = self.costs(context)
        return self.expansions()(
            self.controller, None if costs is None or self.start is None else costs.token_costs(self.start[1])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedTree(GrowingTree):
    """What policies have in common that go by calibrated chances and profiled costs.

    Args:
        profile: what the parts of a step cost. None counts no cost: the whole budget is spent, in the best order.
        calibration: chances by the draft's probabilities, of this pair at the temperature to come
            (`AcceptanceVector.calibration`).
        recipe: one of `recipes`; "static" uses the best planned tree at every step; "auto" is the one that is expected
            to be the fastest by the calibration, where trees that grow have to be well ahead of the planned one.
        holds_for: what the calibration was measured for (`AcceptanceVector.holds_for`); `decode` warns of other
            conditions. None compares the temperature alone.
        planned: the tree of the recipe "static", as `plan_tree` returns it; None for the best by the calibration.
        max_size: None for 64, or as many as 256 where weights stream in: larger trees take longer to compute than to
            read. No more than was profiled.
        branch: fewer where the calibration has fewer ranks.

    Attributes:
        fixed: the tree of every step by the recipe "static", whose bounds are then the policy's, else None.
        expected: recipe -> what it is expected to do, where that was asked.
    """

    recipes: ClassVar[Mapping[str, Recipe]]  # what is best at temperature 0 and what is above it
    usual_depth: ClassVar[int]
    grown_gain: ClassVar[float] = 1.0  # what trees that grow add to what is expected of them
    streams_planned: ClassVar[bool] = False  # whether trees are no larger than the planned one where weights stream in

    profile: HardwareProfile | None = field()
    calibration: Calibration
    holds_for: Conditions | None = None
    planned: TokenTree | None = None
    max_size: int = None  # type: ignore[assignment]  # a number once it is made
    max_depth: int = None  # type: ignore[assignment]
    branch: int = 8
    recipe: str = "auto"
    fixed: TokenTree | None = field(init=False, default=None)
    expected: dict[str, Expectation] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.calibration, Calibration):
            raise ValueError(
                f"calibration: found {type(self.calibration).__name__}, expected that of a vector measured with "
                "measure_acceptance"
            )
        if self.recipe not in ("auto", *self.recipes, STATIC):
            raise ValueError(f"recipe: found {self.recipe!r}, expected auto, {', '.join(self.recipes)} or {STATIC}")
        if self.recipe == STATIC and self.profile is None:
            raise ValueError("recipe: found static without a profile, expected one: without costs no tree is the best")
        self.set(**self.wide_enough())
        GrowingTree.__post_init__(self)  # slots=True creates a new class, which super() without arguments does not know
        self.set(branch=min(self.branch, self.calibration.ranks))
        self.choose()

    def choose(self) -> None:
        """Choose the recipe, by what those that are asked and the planned tree are expected to do."""
        asked, planned, tree = self.asked, {}, None
        bounded = self.streams and self.streams_planned
        if self.profile is not None and (bounded or self.recipe in ("auto", STATIC)):
            tree, planned[STATIC] = best_static(self.rules, self, self.calibration, self.profile, self.planned)
            if bounded:
                self.set(max_size=min(self.max_size, max(tree.size, 2)))
        costs = self.costs()
        expected = {name: expectation(self.recipes[name], self, self.calibration, costs) for name in asked}
        if self.recipe in ("auto", STATIC):
            expected |= planned
        self.set(expected=expected)
        if expected:
            advantage = dict.fromkeys(expected, self.grown_gain) | {STATIC: 1.0 if self.streams else LEAST_ADVANTAGE}
            self.set(recipe=max(expected, key=lambda name: expected[name].value * advantage[name]))
        if self.recipe == STATIC:
            assert tree is not None, "the planned tree was asked"
            self.set(fixed=tree, max_size=tree.size, max_depth=tree.depth, branch=FixedTree(tree).max_children)

    @property
    def asked(self) -> tuple[str, ...]:
        """Recipes of which a run has to know what they are expected to do."""
        return tuple(name for name in self.recipes if self.recipe in ("auto", name))

    @property
    def rules(self) -> Recipe:
        greedy, drawn = self.recipes.values()
        return self.recipes.get(self.recipe, greedy if self.calibration.temperature == 0.0 else drawn)

    @property
    def kind(self) -> str:
        return self.rules.kind

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (self.rules.verifier,) if self.fixed is None else tuple(VERIFIERS)

    @property
    def max_inner(self) -> int:
        return self.most_read if self.fixed is None else FixedTree(self.fixed).max_inner

    @property
    def streams(self) -> bool:
        """Whether weights stream in, so that larger and deeper trees cost little."""
        return self.profile is not None and self.profile.streaming is not None

    def wide_enough(self) -> dict[str, int]:
        """Return the bounds on nodes and levels that were not given: the usual, or wider where weights stream in."""
        depth = self.usual_depth
        size, depth = (STREAMED_SIZE, max(depth, STREAMED_DEPTH)) if self.streams else (SIZE, depth)
        if self.profile is not None:
            size = min(size, self.profile.max_size)
        return {name: wide for name, wide in (("max_size", size), ("max_depth", depth)) if getattr(self, name) is None}

    def costs(self, context: float | None = None) -> StepCosts | None:
        if self.profile is None:
            return None
        greedy = self.calibration.temperature == 0.0
        return StepCosts.of_profile(self.profile, self, context=context, greedy=greedy)

    @property
    def controller(self) -> Controller:
        known = self.expected.get(self.recipe)
        controller = Controller(0.0, 0.0) if known is None else known.controller
        return controller._replace(looked_up_gain=looked_up_gain(self.calibration.temperature))

    def expansions(self) -> Expansions:
        return self.rules.expansions(self, self.calibration)

    def differences(self, wanted: Conditions) -> list[str]:
        measured = self.holds_for or replace(wanted, temperature=self.calibration.temperature)
        return measured.differences(replace(wanted, verifier=measured.verifier))  # a calibration covers both recipes


def predict_policy(
    policy: GrowingTree,
    acceptance: AcceptanceVector,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    prompts: int | None = None,
) -> Prediction:
    """Predict the speedup of a policy of trees that grow; the vector needs a calibration."""
    if policy.fixed is not None:
        return predict(policy.fixed, acceptance, profile, context=context, prompts=prompts)
    assert acceptance.calibration is not None
    return predict_growing(
        policy.expansion_at_start(context), policy, acceptance.calibration, profile, kind=policy.kind, context=context,
        prompts=prompts,
    )  # fmt: skip
