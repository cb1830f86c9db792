"""The policy by which the draft model and text already seen propose for the same tree, and its drafter.

Where nothing was seen before, its trees are the adaptive ones of `dynamic.adaptive` by the draft's most likely tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...design.calibration import Calibration
from ...design.conditions import TOPK, Conditions
from ...design.profile import HardwareProfile
from ...models.protocol import Session
from ...native.text_index import TreeColumns
from ..drafting import DraftTree
from ..dynamic.adaptive import DEPTH, SIZE
from ..dynamic.adaptive_expansion import CONTEXT_STEP, Controller, Rate, StepCosts
from ..dynamic.growing import GrowingDrafter, GrowingTree
from ..tree_policy import TreePolicy
from ..verifiers import DraftSampling
from .hybrid_expansion import HybridExpansion
from .text_index import LEAST_SCORE, RunningText, TextIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridTree(GrowingTree):
    """The policy by which the draft model and text already seen propose for the same tree.

    Args:
        index: earlier texts, as for `LookupTree`.
        profile: what the parts of a step cost. None counts no cost.
        calibration: chances by the draft's probabilities, of this pair at the temperature to come.
        holds_for: what the calibration was measured for, as for `AdaptiveTree`.
        max_size, max_depth, beam, branch: as for `TreeBounds`; no larger than what was profiled.

    Raises:
        ValueError: naming the option, what was found and what was expected.
    """

    index: TextIndex = field(kw_only=False)
    profile: HardwareProfile | None
    calibration: Calibration
    max_size: int = SIZE
    max_depth: int = DEPTH + 4
    branch: int = 8
    holds_for: Conditions | None = None

    def __post_init__(self) -> None:
        GrowingTree.__post_init__(self)
        if self.profile is not None:
            object.__setattr__(self, "max_size", min(self.max_size, self.profile.max_size))
        object.__setattr__(self, "branch", min(self.branch, self.calibration.ranks))

    @property
    def max_children(self) -> int:
        return 2 * self.branch  # looked-up ones and the draft's

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (TOPK,)

    @property
    def kind(self) -> str:
        return "most likely"

    def differences(self, wanted: Conditions) -> list[str]:
        measured = self.holds_for or replace(wanted, temperature=self.calibration.temperature)
        return measured.differences(replace(wanted, verifier=measured.verifier))

    def costs(self, context: float | None = None) -> StepCosts | None:
        """Return the profiled costs with so many tokens in the cache; None where none are counted."""
        if self.profile is None:
            return None
        greedy = self.calibration.temperature == 0.0
        return StepCosts.of_profile(self.profile, self, context=context, greedy=greedy)


class HybridDrafter(GrowingDrafter):
    """Grows the trees of a `HybridTree`, and follows how fast the run is."""

    policy: HybridTree

    def __init__(self, session: Session, policy: HybridTree, **options) -> None:
        super().__init__(session, policy, **options)
        self._text = RunningText(policy.index, options["context"])
        self._columns = TreeColumns(
            max_size=2 * policy.max_size + policy.beam * policy.branch, max_depth=policy.max_depth,
            max_children=policy.branch, least=LEAST_SCORE,
        )  # fmt: skip
        self._tables, self._expected = (
            policy.calibration.tables(),
            policy.calibration.expected(policy.kind)[: policy.branch],
        )
        self._costs: StepCosts | None = None
        self._rate: Rate | None = None
        self._looked_up_at, self.gain = 0, 1.0

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return isinstance(policy, HybridTree)

    def expansion(self, context: int) -> HybridExpansion:
        if self._costs is None or context >= self._looked_up_at + CONTEXT_STEP:
            self._costs, self._looked_up_at = self.policy.costs(context), context
        costs = None
        if self._costs is not None:
            self._rate = self._rate or Rate(1.0, 1.0 / float(self._costs.step_sec[1]))
            costs = self._costs.token_costs(self._rate.tokens_per_sec)
        tables, expected = replace(self._tables, gain=self.gain), self.gain * self._expected
        return HybridExpansion(self.policy, tables, expected, costs, self._text, self._columns)

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        self._text.extend(sequence[self._text.length :])
        return super().grow(sequence)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        super().commit(draft, path)
        if self._rate is not None and self._costs is not None:
            self._rate.seen(len(path), self._costs.seconds(draft.tree.size, self.widths))
        self.gain = Controller(0.0, 0.0, self.gain).seen(len(path), self.expected).gain
