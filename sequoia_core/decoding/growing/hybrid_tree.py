"""The policy by which the draft model and text already seen propose for the same tree, and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...models.protocol import Session
from ...native.text_index import TreeColumns
from ..drafting import DraftTree
from ..tree_policy import TreePolicy
from ..verifiers import VERIFIERS, DraftSampling
from .adaptive import DEPTH, SIZE
from .adaptive_expansion import (
    RECIPES,
    STATIC,
    Controller,
    Expectation,
    Recipe,
    best_static,
    expectation,
    looked_up_gain,
)
from .growing import CalibratedTree, GrowingDrafter, GrowingTree
from .hybrid_expansion import HybridExpansion
from .in_turn_expansion import InTurnExpansion
from .step_costs import RunCosts
from .text_index import LEAST_SCORE, RunningText, TextIndex

DRAFTED = {"topk": RECIPES["deterministic"], "in_turn": RECIPES["sampled"]}  # how each recipe has the draft propose
LOOKUP_GAIN = 1.03


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
            calibration; "static" unless that is ahead by more than such expectations promise too much.

    Attributes:
        expected: recipe -> what its drafted part alone is expected to do, where that was asked.
    """

    index: TextIndex = field(kw_only=False)
    max_size: int = None  # type: ignore[assignment]  # a number once it is made
    max_depth: int = None  # type: ignore[assignment]
    branch: int = 8
    recipe: str = "auto"
    expected: dict[str, Expectation] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.set(**self.wide_enough(SIZE, DEPTH + 4))
        GrowingTree.__post_init__(self)
        if self.recipe not in ("auto", *DRAFTED, STATIC):
            raise ValueError(f"recipe: found {self.recipe!r}, expected auto, {', '.join(DRAFTED)} or {STATIC}")
        if self.recipe == STATIC and self.profile is None:
            raise ValueError("recipe: found static without a profile, expected one: without costs no tree is the best")
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
        self.set(branch=min(self.branch, self.calibration.ranks))
        if self.recipe == "auto" and self.calibration.temperature == 0.0:
            self.set(recipe="topk")
        asked = {"auto": tuple(DRAFTED), "in_turn": ("in_turn",)}.get(self.recipe, ())
        expected = {name: expectation(DRAFTED[name], self, self.calibration, self.costs()) for name in asked}
        recipe = max(expected, key=lambda name: expected[name].value) if expected else self.recipe
        if self.profile is not None and self.recipe in ("auto", STATIC):
            tree, expected[STATIC] = best_static(self.rules, self, self.calibration, self.profile, self.planned)
            ahead = LOOKUP_GAIN * expected[recipe].value if recipe != STATIC else 0.0
            if self.least_advantage * expected[STATIC].value > ahead:
                recipe = STATIC
                self.use_static(tree)
        self.set(expected=expected, recipe=recipe)

    @property
    def rules(self) -> Recipe:
        return DRAFTED.get(self.recipe, DRAFTED["topk" if self.calibration.temperature == 0.0 else "in_turn"])

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (self.rules.verifier,) if self.fixed is None else tuple(VERIFIERS)

    @property
    def kind(self) -> str:
        return self.rules.kind

    @property
    def largest_token(self) -> int:
        return self.index.largest_token

    @property
    def max_children(self) -> int:
        return 2 * self.branch  # looked-up ones and the draft's


class HybridDrafter(GrowingDrafter):
    policy: HybridTree

    def __init__(self, session: Session, policy: HybridTree, **options) -> None:
        super().__init__(session, policy, **options)
        self._text = RunningText(policy.index, self.reach.target)
        self._columns = TreeColumns(
            max_size=2 * policy.max_size + policy.beam * policy.branch, max_depth=policy.max_depth,
            max_children=policy.branch, least=LEAST_SCORE,
        )  # fmt: skip
        self._tables = policy.calibration.tables()
        self._expected = policy.calibration.expected(policy.kind)[: policy.branch]
        self._costs = None if policy.profile is None else RunCosts(policy.costs)
        expected = policy.expected.get(policy.recipe)
        threshold = 0.0 if expected is None else expected.controller.threshold
        start = looked_up_gain(policy.calibration.temperature)
        self.controller = Controller(0.0, threshold, looked_up_gain=start)

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return isinstance(policy, HybridTree) and policy.fixed is None

    def expansion(self, context: int) -> HybridExpansion:
        costs = None if self._costs is None else self._costs.token_costs(context)
        gain, self._columns.state.gain = self.controller.gain, self.controller.looked_up_gain
        tables, expected = replace(self._tables, gain=gain), gain * self._expected
        if self.policy.recipe == "topk":
            return HybridExpansion(self.policy, tables, expected, costs, self._text, self._columns)
        threshold = self.controller.threshold
        return InTurnExpansion(self.policy, tables, expected, costs, self._text, self._columns, threshold)

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        self._text.extend(sequence[self._text.length :])
        self._columns.state.max_depth = min(self.policy.max_depth, self.reach.verified(len(sequence)))
        draft = super().grow(sequence)
        draft.text = self._text
        return draft

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        super().commit(draft, path)
        nodes = self.nodes
        alone = (nodes.looked_up > 0) & (nodes.cache_positions[nodes.parents] < 0)  # the draft was not asked about them
        self.follow(draft.tree.size, len(path), int(alone[list(path)].sum()), float(nodes.scores[alone].sum()))

    def follow(self, size: int, tokens: float, accepted: int, expected: float) -> None:
        """Follow the run after a step.

        Args:
            accepted, expected: how many of them are looked-up nodes that the draft did not read, and how many were
                expected.
        """
        if self._costs is not None:
            self._costs.seen(tokens, size, self.widths)
        controller = self.controller.after(size, self.policy.max_size).looked_up(accepted, expected)
        self.controller = controller.seen(tokens - accepted, self.expected - expected)
