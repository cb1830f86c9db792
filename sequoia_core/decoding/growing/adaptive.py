"""Trees that follow the draft's confidence and this machine's costs, by a profile, not a clock.

Related: SpecExec 2406.02532, EAGLE-2 2406.16858, and for other drafters BASTION 2605.29727, CaDDTree 2606.01813, CAST
2510.26577, Yggdrasil.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...design.calibration import Calibration
from ...models.protocol import Session
from ..drafting import DraftTree
from ..tree_policy import TreePolicy
from ..verifiers import VERIFIERS, DraftSampling, same_draft_sampling
from .adaptive_expansion import (
    RECIPES,
    STATIC,
    Expectation,
    Recipe,
    best_static,
    expectation,
)
from .expansion import ExpansionPolicy
from .growing import CalibratedTree, GrowingDrafter, GrowingTree
from .step_costs import CONTEXT_STEP, Rate, StepCosts

SIZE, DEPTH = 64, 12  # of the largest trees; costs keep them well below


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTree(CalibratedTree):
    """The policy that drafts, at every step, the nodes whose expected tokens outweigh their cost.

    Args:
        profile: what the parts of a step cost. None counts no cost: the whole budget is spent, in the best order.
        calibration: chances by the draft's probabilities, of this pair at the temperature to come
            (`AcceptanceVector.calibration`).
        recipe: "deterministic" takes the draft's most likely tokens and prunes; "sampled" draws children without
            replacement and decides before each draw; "static" uses the best planned tree at every step. "auto" is
            "static" unless another is expected to be a tenth faster by the calibration (at all faster where weights
            stream in); without a profile one of the first two.
        holds_for: what the calibration was measured for (`AcceptanceVector.holds_for`); `decode` warns of other
            conditions. None compares the temperature alone.
        max_size: None for 64, or where weights stream in 256 at most and no more than the best planned tree has:
            larger trees take longer to compute than to read.
        max_depth: None for 12, and for 24 where weights stream in, since drafting overlaps with reading.
        branch: fewer where the calibration has fewer ranks.

    Attributes:
        expected: recipe -> what it is expected to do; all of them after "auto".
    """

    max_size: int = None  # type: ignore[assignment]  # a number once it is made
    max_depth: int = None  # type: ignore[assignment]
    branch: int = 8
    recipe: str = "auto"
    expected: dict[str, Expectation] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.calibration, Calibration):
            raise ValueError(
                f"calibration: found {type(self.calibration).__name__}, expected that of a vector measured with "
                "measure_acceptance"
            )
        if self.recipe not in ("auto", *RECIPES, STATIC):
            raise ValueError(f"recipe: found {self.recipe!r}, expected auto, {STATIC}, {' or '.join(RECIPES)}")
        if self.recipe == STATIC and self.profile is None:
            raise ValueError("recipe: found static without a profile, expected one: without costs no tree is the best")
        self.set(**self.wide_enough(SIZE, DEPTH))
        GrowingTree.__post_init__(self)  # slots=True creates a new class, which super() without arguments does not know
        self.set(branch=min(self.branch, self.calibration.ranks))
        planned = {}
        if self.profile is not None and (self.streams or self.recipe in ("auto", STATIC)):
            tree, planned[STATIC] = best_static(self.rules, self, self.calibration, self.profile, self.planned)
        if self.streams:
            self.set(max_size=min(self.max_size, max(tree.size, 2)))
        grown = RECIPES if self.recipe == "auto" else RECIPES.keys() & {self.recipe}
        expected = {name: expectation(RECIPES[name], self, self.calibration, self.costs()) for name in grown}
        if self.recipe in ("auto", STATIC):
            expected |= planned
        advantage = dict.fromkeys(expected, 1.0) | {STATIC: self.least_advantage}
        self.set(expected=expected, recipe=max(expected, key=lambda name: expected[name].value * advantage[name]))
        if self.recipe == STATIC:
            self.use_static(tree)

    @property
    def rules(self) -> Recipe:
        static = "deterministic" if self.calibration.temperature == 0.0 else "sampled"
        return RECIPES.get(self.recipe, RECIPES[static])

    @property
    def verifiers(self) -> tuple[str, ...]:
        return tuple(VERIFIERS) if self.recipe == STATIC else same_draft_sampling(self.rules.verifier)

    @property
    def kind(self) -> str:
        return self.rules.kind

    def expansion_at_start(self, context: float | None = None) -> ExpansionPolicy:
        return self.rules.expansion(self, self.calibration, self.costs(context))(self.expected[self.recipe].controller)


class AdaptiveDrafter(GrowingDrafter):
    policy: AdaptiveTree

    def __init__(self, session: Session, policy: AdaptiveTree, **options) -> None:
        super().__init__(session, policy, **options)
        start = policy.expected[policy.recipe]
        self.controller, self._context = start.controller, -CONTEXT_STEP
        self._costs: StepCosts | None = None
        self._rate = None if policy.profile is None else Rate(start.tokens_per_step, start.controller.theta)

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return isinstance(policy, AdaptiveTree) and policy.fixed is None

    def expansion(self, context: int) -> ExpansionPolicy:
        if context >= self._context + CONTEXT_STEP:
            self._context, self._costs = context, self.policy.costs(context)
            self._make = self.policy.rules.expansion(self.policy, self.policy.calibration, self._costs)
        return self._make(self.controller)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        super().commit(draft, path)
        size, controller = draft.tree.size, self.controller
        if self._rate is not None and self._costs is not None:
            self._rate.seen(len(path), self._costs.seconds(size, self.widths))  # accepted nodes and the bonus token
            controller = controller._replace(theta=self._costs.at_least(self._rate.tokens_per_sec))
        self.controller = controller.after(size, self.policy.max_size).seen(len(path), self.expected)
