"""The policy and the drafter of trees made of text already seen: no draft model, next to no cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ...design.conditions import TOPK, Conditions
from ...design.optimal_trees import check_whole
from ...design.profile import HardwareProfile
from ...design.tree import MAX_SIZE, TokenTree
from ...models.protocol import LanguageModel
from ...native import sampling_ops, tree_expansion
from ...native.text_index import MOST, TreeColumns
from ..drafting import DraftTree, Reach, RootDrafter
from ..pass_times import SIZES, pass_times
from ..plan import TreePlan
from .adaptive_expansion import Controller, looked_up_gain
from .expansion import worth_verifying
from .step_costs import RunCosts, StepCosts
from .text_index import LEAST_SCORE, RunningText, TextIndex

PROFILED_SIZE = 64  # nodes at most where none are asked for


@dataclass(frozen=True, slots=True)
class LookupTree:
    """The policy that drafts what followed the same context before, in this text or in those of an index.

    A tree depends on committed text alone, so the top-k rule is exact for it at every temperature (SpecExec, arXiv
    2406.02532). The text under way is always looked through too; it is in the index only after `index.add`.

    Args:
        index: earlier texts; an empty one leaves the text under way.
        max_size: nodes of a tree at most, root included; no more than the profile has times for. With a size and no
            profile no cost is counted: every node with a chance of at least 0.005. With neither, a run first takes the
            times of the target (`pass_times`), as `untimed` says.
        profile: what verifying costs; the likeliest nodes are taken while they are worth it at the run's rate.
    """

    index: TextIndex
    max_size: int = None  # type: ignore[assignment]  # a whole number once it is made
    max_depth: int = 16
    profile: HardwareProfile | None = None
    untimed: bool = False

    def __post_init__(self) -> None:
        if self.max_size is None:
            object.__setattr__(self, "untimed", self.profile is None)
            object.__setattr__(self, "max_size", SIZES[-1] if self.profile is None else PROFILED_SIZE)
        if not isinstance(self.index, TextIndex):
            raise ValueError(f"index: found {type(self.index).__name__}, expected a TextIndex")
        check_whole("max_size", self.max_size, 1, MAX_SIZE)
        check_whole("max_depth", self.max_depth, 1, MAX_SIZE)
        if self.profile is not None:
            object.__setattr__(self, "max_size", min(self.max_size, self.profile.max_size))

    @property
    def fixed(self) -> TokenTree | None:
        return None

    @property
    def needs_draft(self) -> bool:
        return False

    @property
    def max_inner(self) -> int:
        return max(self.max_size - 1, 1)

    @property
    def max_children(self) -> int:
        return min(MOST, self.max_inner)

    @property
    def largest_token(self) -> int:
        return self.index.largest_token

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (TOPK,)

    def differences(self, wanted: Conditions) -> list[str]:
        return []  # nothing was measured for it

    def timed(self, target: LanguageModel) -> LookupTree:
        """Return this policy, with the target's times where it needs them; streamed weights hide what nodes cost."""
        if not self.untimed or target.offload is not None:
            return self
        return replace(self, profile=pass_times(target), untimed=False)


def profile_of_target(
    profiles: Iterable[HardwareProfile], *, target: str, dtype: str, offload: str | None
) -> HardwareProfile | None:
    """Return the first profile of this target, with any draft and device; None where there is none."""
    for profile in profiles:
        own = {"draft": profile.meta.get("draft", ""), "device": profile.device}
        if not profile.differences(target=target, dtype=dtype, offload=offload, **own):
            return profile
    return None


class LookupDrafter:
    """Drafts the trees of a `LookupTree`; it has no session. `capacity` is the tokens of the text at its longest."""

    def __init__(self, policy: LookupTree, *, reach: Reach, capacity: int, temperature: float) -> None:
        self._text, self._policy, self._reach = RunningText(policy.index, capacity), policy, reach
        self._tree = TreeColumns(
            max_size=policy.max_size, max_depth=policy.max_depth, max_children=policy.max_children, least=LEAST_SCORE
        )
        self._root, self._costs = RootDrafter(), None
        if policy.profile is not None:
            costs_at = partial(StepCosts.without_draft, policy.profile, policy.max_size, greedy=temperature == 0.0)
            self._costs = RunCosts(lambda context: costs_at(context=context))
            self._controller = Controller(0.0, 0.0, looked_up_gain=looked_up_gain(temperature))
        compiled = tree_expansion.compiled() is not None and sampling_ops.compiled() is not None
        self._shaping = (
            tree_expansion.Shaping(max_size=policy.max_size, beam=1, branch=1, most_read=1) if compiled else None
        )

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        self._text.extend(sequence[self._text.length :])
        self._tree.state.max_depth = min(self._policy.max_depth, self._reach.verified(len(sequence)))
        if self._costs is None:
            size = self._text.grow(self._tree)
        else:
            self._tree.state.gain = self._controller.looked_up_gain
            scores = self._tree.columns["scores"][: self._text.grow(self._tree)]
            size = worth_verifying(scores, self._costs.token_costs(len(sequence)).step)
            self._expected = float(scores[:size].sum())
        if size == 1:
            return self._root.grow(sequence)
        plan, tokens, order = self._planned(size) if self._shaping is None else self._compiled_plan(size)
        probs, none_read = self._tree.columns["probs"][order], np.full(size, -1)
        return DraftTree(
            plan, len(sequence) - 1, torch.from_numpy(tokens), torch.from_numpy(probs), torch.empty(0, 0), none_read,
            text=self._text,
        )  # fmt: skip

    def _planned(self, size: int) -> tuple[TreePlan, np.ndarray, np.ndarray]:
        columns = {name: self._tree.columns[name][:size] for name in ("parents", "ranks", "tokens")}
        tree, order = TokenTree.from_links(columns["parents"], columns["ranks"])
        return TreePlan(tree), columns["tokens"][order], order

    def _compiled_plan(self, size: int) -> tuple[TreePlan, np.ndarray, np.ndarray]:
        assert self._shaping is not None
        self._shaping.take({name: self._tree.columns[name][:size] for name in ("parents", "ranks", "depths", "tokens")})
        parents, _, depths, tokens, *_ = self._shaping.kept()
        firsts, counts, mask = self._shaping.description(size)
        tree = TokenTree.unchecked(parents.astype(np.int32))
        plan = TreePlan(tree, depths=depths, child_counts=counts, first_children=firsts, tree_mask=mask)
        return plan, tokens, self._shaping.order(size)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self._costs is not None:
            self._costs.seen(len(path), draft.tree.size)
            self._controller = self._controller.looked_up(len(path), self._expected)

    def wait(self) -> None:
        pass
