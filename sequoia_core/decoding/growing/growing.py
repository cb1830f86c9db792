"""The drafter of dynamic trees: runs the draft's passes over the nodes that an `ExpansionPolicy` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...design.acceptance import AcceptanceVector
from ...design.calibration import Calibration
from ...design.conditions import TOPK, Conditions
from ...design.optimal_trees import check_whole
from ...design.prediction import Prediction, predict
from ...design.profile import HardwareProfile
from ...design.tree import MAX_SIZE, TokenTree
from ...models.protocol import Session
from ..drafting import DraftTree, LevelDrafter, unseen_tokens
from ..plan import TreePlan
from ..sampling import SamplingConfig, check_probabilities, draft_probabilities, take_most_likely
from ..tree_policy import FixedTree
from ..verifiers import DraftSampling
from .compiled_growing import CompiledGrower
from .expansion import ExpansionPolicy, Nodes, TreeBounds
from .growing_prediction import predict_growing
from .in_turn_expansion import InTurnExpansion
from .marginal_gains import MarginalGains, marginal_gains
from .step_costs import StepCosts

STREAMED_SIZE, STREAMED_DEPTH = 256, 24
LEAST_ADVANTAGE = 1.1  # calibrations promise grown trees up to 13 % more tokens than come


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTree(TreeBounds):
    """What policies of dynamic trees have in common: they are their own bounds, and no step's tree is fixed."""

    beam: int = 16
    branch: int = 16

    def __post_init__(self) -> None:
        for name in ("max_size", "max_depth", "beam", "branch"):
            check_whole(name, getattr(self, name), 1, MAX_SIZE)

    @property
    def fixed(self) -> TokenTree | None:
        return None

    @property
    def needs_draft(self) -> bool:
        return True

    @property
    def max_inner(self) -> int:
        return self.most_read

    @property
    def max_children(self) -> int:
        return self.branch

    @property
    def largest_token(self) -> int:
        return -1  # their tokens are the draft's

    def differences(self, wanted: Conditions) -> list[str]:
        return []  # nothing was measured for them

    @property
    def verifiers(self) -> tuple[str, ...]:
        return (TOPK,)  # of the draft's most likely tokens, which most of them take

    @property
    def kind(self) -> str:
        """Which tables of a calibration apply to its children, see `design.calibration.KINDS`."""
        return "most likely"

    def expansion_at_start(self, context: float | None = None) -> ExpansionPolicy:
        """Return the expansion policy at the start of a run, with so many tokens in the cache."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedTree(GrowingTree):
    """What policies have in common that go by calibrated chances and profiled costs.

    Args:
        profile: what the parts of a step cost. None counts no cost.
        calibration: chances by the draft's probabilities, of this pair at the temperature to come.
        holds_for: what the calibration was measured for. None compares the temperature alone.
        planned: the tree of the recipe "static", as `plan_tree` returns it; None for the best by the calibration.

    Attributes:
        fixed: the tree of every step by the recipe "static", whose bounds are then the policy's, else None.
    """

    profile: HardwareProfile | None
    calibration: Calibration
    holds_for: Conditions | None = None
    planned: TokenTree | None = None
    fixed: TokenTree | None = field(init=False, default=None)

    def set(self, **fields) -> None:
        """Set fields while the policy is made."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def use_static(self, tree: TokenTree) -> None:
        """Have every step use one tree and its bounds."""
        self.set(fixed=tree, max_size=tree.size, max_depth=tree.depth, branch=FixedTree(tree).max_children)

    @property
    def max_inner(self) -> int:
        return self.most_read if self.fixed is None else FixedTree(self.fixed).max_inner

    @property
    def streams(self) -> bool:
        """Whether weights stream in, so that larger and deeper trees cost little."""
        return self.profile is not None and self.profile.streaming is not None

    @property
    def least_advantage(self) -> float:
        """How much faster grown trees have to be expected than the planned one before they are taken."""
        return 1.0 if self.streams else LEAST_ADVANTAGE

    def wide_enough(self, size: int, depth: int) -> dict[str, int]:
        """Return the bounds on nodes and levels that were not given: these, or wider ones where weights stream in."""
        size, depth = (STREAMED_SIZE, max(depth, STREAMED_DEPTH)) if self.streams else (size, depth)
        if self.profile is not None:
            size = min(size, self.profile.max_size)
        return {name: wide for name, wide in (("max_size", size), ("max_depth", depth)) if getattr(self, name) is None}

    def costs(self, context: float | None = None) -> StepCosts | None:
        """Return the profiled costs with so many tokens in the cache; None where none are counted."""
        if self.profile is None:
            return None
        greedy = self.calibration.temperature == 0.0
        return StepCosts.of_profile(self.profile, self, context=context, greedy=greedy)

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
    """Predict the speedup of a dynamic or adaptive policy; the vector needs a calibration."""
    if policy.fixed is not None:
        return predict(policy.fixed, acceptance, profile, context=context, prompts=prompts)
    assert acceptance.calibration is not None
    return predict_growing(
        policy.expansion_at_start(context), policy, acceptance.calibration, profile, kind=policy.kind, context=context,
        prompts=prompts,
    )  # fmt: skip


class DraftRows:
    """The draft's probabilities after a frontier of w nodes, as `expansion.Rows`.

    Args:
        block: float32 [w, V].
        first: as `block`, what the first of them are drawn from; None for `block`.
    """

    def __init__(
        self,
        block: torch.Tensor,
        draft_sampling: DraftSampling,
        generator: torch.Generator,
        first: torch.Tensor | None = None,
    ) -> None:
        self.block, self.draft_sampling, self.generator, self.first = block, draft_sampling, generator, first

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._with_probs(take_most_likely(self.block, k))

    def drawn(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        if self.first is not None:
            for row, tokens in zip(self.first, seen, strict=False):
                row[torch.from_numpy(tokens).to(row.device)] = 0.0
        return self._with_probs(
            self.draft_sampling(self.block, min(k, self.block.shape[1]), self.generator, self.first)
        )

    def given(self, row: int, tokens: np.ndarray) -> np.ndarray:
        return self.block[row, torch.from_numpy(tokens).to(self.block.device)].double().cpu().numpy()

    def _with_probs(self, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return tokens.cpu().numpy(), self.block.gather(1, tokens).double().cpu().numpy()


class PlainGrower:
    """Grows one tree after the other with any session, asking an expansion policy in Python."""

    def __init__(
        self,
        policy: GrowingTree,
        *,
        draft_sampling: DraftSampling,
        sampling: SamplingConfig,
        generator: torch.Generator,
    ) -> None:
        self.policy, self.draft_sampling, self.sampling = policy, draft_sampling, sampling
        self.generator = generator
        most = policy.max_inner
        self._mask = torch.full((most, most), -torch.inf)  # over the nodes read in one step; each sees its ancestors
        self.rows: torch.Tensor | None = None  # allocated when the first row tells how long it is
        self.first_rows: torch.Tensor | None = None

    @staticmethod
    def supports(expansion: ExpansionPolicy, session: Session) -> bool:
        return True

    def grow(
        self, expansion: ExpansionPolicy, session: Session, sequence: Sequence[int]
    ) -> tuple[TreePlan, Nodes, list[int]]:
        """Return a tree below the last token of the sequence, its nodes, and how many nodes each pass read."""
        nodes = expansion.start(sequence[-1])
        widths: list[int] = []
        for _ in range(self.policy.max_depth):
            frontier = expansion.frontier(nodes)
            if len(frontier) == 0:
                break
            block, first = self._read(nodes, frontier, sum(widths), session, sequence)
            widths.append(len(frontier))
            nodes = expansion.extended(nodes, frontier, DraftRows(block, self.draft_sampling, self.generator, first))
        tree, nodes = expansion.kept(nodes).as_tree()
        return TreePlan(tree), nodes, widths

    def _read(
        self, nodes: Nodes, frontier: np.ndarray, read: int, session: Session, sequence: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the draft over a frontier, after `read` nodes of this step; return its rows as `draft_probabilities`."""
        stop = read + len(frontier)
        nodes.cache_positions[frontier] = np.arange(read, stop)
        if read == 0:
            request = unseen_tokens(session, sequence)
            self._mask[0] = -torch.inf
            self._mask[0, 0] = 0.0
        else:
            own = self._mask[read:stop]
            for slot, above in enumerate(nodes.cache_positions[nodes.parents[frontier]].tolist(), start=read):
                self._mask[slot] = self._mask[above]  # which may be of this pass, before its children
                self._mask[slot, slot] = 0.0
            positions = torch.from_numpy(len(sequence) - 1 + nodes.depths[frontier])
            request = torch.from_numpy(nodes.tokens[frontier]), positions, own[:, :stop]
        block, first = draft_probabilities(session.forward(*request, keep=len(frontier)), self.sampling)
        check_probabilities(block, "draft")
        if self.rows is None:
            self.rows = block.new_empty(self.policy.max_inner, block.shape[1])
            self.first_rows = None if first is None else torch.empty_like(self.rows)
        self.rows[read:stop] = block
        if first is None or self.first_rows is None:
            return block, None
        self.first_rows[read:stop] = first
        return block, self.first_rows[read:stop]


class GrowingDrafter(LevelDrafter):
    """Drafts with any session; subclasses say which expansion policy a step has.

    The draft may read nodes that are not kept, and keep nodes without children, so each node's position in the cache is
    recorded (`Nodes.cache_positions`).
    """

    def __init__(self, session: Session, policy: GrowingTree, **options) -> None:
        super().__init__(session, policy, **options)
        options = {name: options[name] for name in ("draft_sampling", "sampling", "generator")}
        self._growers = [kind(policy, **options) for kind in (CompiledGrower, PlainGrower)]  # fastest first

    def expansion(self, context: int) -> ExpansionPolicy:
        """Return the expansion policy of the next tree; `context` tokens are committed."""
        raise NotImplementedError

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        expansion: Any = self.expansion(len(sequence))
        depth = self.reach.drafted(len(sequence))
        if depth < self.policy.max_depth:
            expansion = replace(expansion, bounds=expansion.bounds.down_to(depth))
        grower = next(own for own in self._growers if own.supports(expansion, self.session))
        plan, nodes, self.widths = grower.grow(expansion, self.session, sequence)
        self.nodes = nodes  # of the tree just grown; the next one may overwrite them
        self.expected = sum(nodes.scores.tolist())  # tokens that the step is expected to commit
        rows = torch.empty(0, 0) if grower.rows is None else grower.rows
        tokens, probs = torch.from_numpy(nodes.tokens), torch.from_numpy(nodes.probs)
        gains = partial(self._marginal_gains, expansion, nodes, rows)
        looked_up = None
        if isinstance(expansion, InTurnExpansion):
            looked_up = np.bincount(nodes.parents[nodes.looked_up > 0], minlength=nodes.size)
        return DraftTree(
            plan, len(sequence) - 1, tokens, probs, rows, nodes.cache_positions, gains, looked_up=looked_up,
            widths=self.widths, first_rows=grower.first_rows,
        )  # fmt: skip

    def _marginal_gains(self, expansion: ExpansionPolicy, nodes: Nodes, rows: torch.Tensor, most: int) -> MarginalGains:
        """Say what the nodes of the tree just drafted add and cost; `rows` as in its `DraftTree`."""
        read = rows[torch.from_numpy(nodes.cache_positions[nodes.cache_positions >= 0])]
        return marginal_gains(expansion, nodes, DraftRows(read, self.draft_sampling, self.generator), most=most)
