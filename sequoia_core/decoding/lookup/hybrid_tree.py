"""The policy by which the draft model and text already seen propose for the same tree, and its drafter.

Where nothing was seen before, its trees are the adaptive ones of `dynamic.adaptive` by the draft's most likely tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...models.protocol import Session
from ...native.text_index import TreeColumns
from ..drafting import DraftTree
from ..dynamic.adaptive import DEPTH, SIZE
from ..dynamic.adaptive_expansion import Controller, RunCosts
from ..dynamic.growing import CalibratedTree, GrowingDrafter, GrowingTree
from ..tree_policy import TreePolicy
from ..verifiers import DraftSampling
from .hybrid_expansion import HybridExpansion
from .text_index import LEAST_SCORE, RunningText, TextIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridTree(CalibratedTree):
    """The policy by which the draft model and text already seen propose for the same tree.

    Args:
        index: earlier texts, as for `LookupTree`.
        profile, calibration, holds_for: as for `CalibratedTree`.
        max_size, max_depth, beam, branch: as for `TreeBounds`; no larger than what was profiled.

    Raises:
        ValueError: naming the option, what was found and what was expected.
    """

    index: TextIndex = field(kw_only=False)
    max_size: int = SIZE
    max_depth: int = DEPTH + 4
    branch: int = 8

    def __post_init__(self) -> None:
        GrowingTree.__post_init__(self)
        if self.profile is not None:
            object.__setattr__(self, "max_size", min(self.max_size, self.profile.max_size))
        object.__setattr__(self, "branch", min(self.branch, self.calibration.ranks))

    @property
    def max_children(self) -> int:
        return 2 * self.branch  # looked-up ones and the draft's


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
        self._tables = policy.calibration.tables()
        self._expected = policy.calibration.expected(policy.kind)[: policy.branch]
        self._costs = None if policy.profile is None else RunCosts(policy.costs)
        self.gain = 1.0

    @staticmethod
    def supports(session: Session, policy: TreePolicy, draft_sampling: DraftSampling) -> bool:
        return isinstance(policy, HybridTree)

    def expansion(self, context: int) -> HybridExpansion:
        costs = None if self._costs is None else self._costs.token_costs(context)
        tables, expected = replace(self._tables, gain=self.gain), self.gain * self._expected
        return HybridExpansion(self.policy, tables, expected, costs, self._text, self._columns)

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        self._text.extend(sequence[self._text.length :])
        draft = super().grow(sequence)
        draft.text = self._text
        return draft

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        super().commit(draft, path)
        if self._costs is not None:
            self._costs.seen(len(path), draft.tree.size, self.widths)
        self.gain = Controller(0.0, 0.0, self.gain).seen(len(path), self.expected).gain
