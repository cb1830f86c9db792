"""Drafters: each step, fill a tree with the draft's tokens. n = tree nodes, i = inner ones, V = vocabulary.

`sequoia_draft` in `native/llama_x86.c` repeats `LevelDrafter.fill_tree`: change both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ..design.tree import TokenTree
from ..models.protocol import Session, causal_mask
from ..native.drafting_calls import DraftCall
from ..native.llama_x86 import CompiledSession
from .node_facts import MarginalGains, Occurrence
from .plan import TreePlan, plan_of
from .sampling import (
    SamplingConfig,
    check_probabilities,
    draft_probabilities,
    finite,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
    to_float64,
)
from .tree_policy import ROOT_ONLY, TreePolicy
from .verifiers import DraftSampling

COMPILED_SAMPLINGS = (sample_without_replacement, sample_with_replacement, take_most_likely)


@dataclass(slots=True)
class DraftTree:
    """One step's tree and what is in it; the next `grow` of the same drafter may overwrite all of it.

    Attributes:
        root_position: position of the root in the text and in both sessions; all tokens before it are committed.
        tokens: int64 [n], root first.
        probs: float32 or float64 [n], what the draft, or the text seen before, gave each token after its parent; 1 for
            the root.
        rows: float32 [.., V], the rows that children were drawn from; none where no draft model was asked.
        cache_positions: int64 [n], the position of each node in the draft's cache, counted from the root's, which is
            also the row of its children; -1 for a node that the draft did not read.
        marginal_gains: how many candidates to list -> what its nodes add and cost; None where the tree was given.
        find: parents, tokens and which nodes the draft read, each [n] -> their occurrences in text already seen; None
            where nothing was looked up.
        looked_up: int64 [n], how many children of each node, the first ones, were proposed before any was drawn from
            the draft's row; None where all children were proposed in one way.
        widths: nodes that each pass of the draft read, where the tree was grown; empty for a tree that was given.
        first_rows: as `rows`, what the first child drawn after each node was drawn from; None where that was `rows`.
        states: float [n, states, H], those of the target's pass that a draft head reads; None for no head.
    """

    plan: TreePlan
    root_position: int
    tokens: torch.Tensor
    probs: torch.Tensor
    rows: torch.Tensor
    cache_positions: np.ndarray
    marginal_gains: Callable[[int], MarginalGains] | None = None
    find: Callable[..., tuple[Occurrence | None, ...]] | None = None
    looked_up: np.ndarray | None = None
    widths: Sequence[int] = ()
    first_rows: torch.Tensor | None = None
    states: torch.Tensor | None = None

    @property
    def tree(self) -> TokenTree:
        return self.plan.tree

    def occurrences(self) -> tuple[Occurrence | None, ...]:
        """Return each node's match position in the context [n], None without a match; empty if nothing matched."""
        if self.find is None:
            return ()
        return self.find(self.tree.parents, self.tokens.numpy(), self.cache_positions >= 0)

    def row(self, node: int) -> np.ndarray:
        """Return the draft's row after a node, float64 [V]; empty after one that the draft did not read."""
        position = int(self.cache_positions[node])
        return to_float64(self.rows[position]) if position >= 0 else np.empty(0)

    def first_row(self, node: int) -> np.ndarray | None:
        """Return the row that the first child drawn after a node came from, float64 [V]; None where it was `row`."""
        position = int(self.cache_positions[node])
        if self.first_rows is None or position < 0 or not self.first_rows[position].any():
            return None
        return to_float64(self.first_rows[position])


class Drafter(Protocol):
    """What the loop needs of a drafter."""

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        """Draft one tree below the last token of the committed sequence; FloatingPointError for logits not finite."""
        ...

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        """Keep only the nodes of the accepted path of the tree just drafted."""
        ...

    def wait(self) -> None:
        """Return when the device has finished."""
        ...


class Reach(NamedTuple):
    """How deep trees may be where a context ends: the positions that each model has."""

    target: int
    draft: int

    def verified(self, length: int) -> int:
        """Return the depth of trees below a text of so many tokens."""
        return self.target - length - 1

    def drafted(self, length: int) -> int:
        """Return the depth to which the draft may propose; 0 once its context is full."""
        return max(0, min(self.verified(length), self.draft - length + 1))


class DraftRun(NamedTuple):
    """What the trees of a run are drafted with.

    Attributes:
        session: the draft's, which holds all of the prompt except its last token; None where no draft model is asked.
        sampling: its top-p and top-k cut the rows of first children (`draft_probabilities`).
    """

    session: Session | None
    policy: TreePolicy
    draft_sampling: DraftSampling
    sampling: SamplingConfig
    reach: Reach
    generator: torch.Generator


def unseen_tokens(session: Session, sequence: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, positions and mask of a step's first pass: the tokens committed since the last one, the root last."""
    unseen = sequence[session.length :]
    return torch.tensor(unseen), torch.arange(session.length, len(sequence)), causal_mask(len(unseen))


def commit_path(session: Session, draft: DraftTree, path: tuple[int, ...]) -> None:
    """Have a draft's session keep what it read of an accepted path, and take the target's states of all of it."""
    read = [position for position in draft.cache_positions[list(path)].tolist() if position >= 0]
    if read:  # else nothing was forwarded: the next tree's first pass reads the tokens
        session.commit(draft.root_position, read)
    if draft.states is not None:
        session.see(draft.root_position, draft.states[list(path)])


class RootDrafter:
    """Drafts nothing: the tree is its root, and decoding is autoregressive."""

    def __init__(self) -> None:
        self.plan = plan_of(ROOT_ONLY)

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        plan, last = self.plan, torch.tensor(sequence[-1:])
        return DraftTree(plan, len(sequence) - 1, last, torch.ones(1), torch.empty(0, 0), plan.cache_positions)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        pass

    def wait(self) -> None:
        pass


class LevelDrafter:
    """Drafts a fixed tree level by level, one pass of the draft for each, with any session.

    A drafter of trees that are chosen before each step derives from it, and passes its own plan to `fill_tree`.
    """

    def __init__(self, run: DraftRun) -> None:
        assert run.session is not None, "`assemble` has opened one"
        self.run, self.session = run, run.session
        self.fixed_plan = None if run.policy.fixed is None else plan_of(run.policy.fixed)
        self._rows: torch.Tensor | None = None  # allocated when the first row tells how long it is
        self._first_rows: torch.Tensor | None = None

    @staticmethod
    def supports(run: DraftRun) -> bool:
        """Whether this drafter can fill such trees that way on that session."""
        return run.policy.fixed is not None

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        return self.fill_tree(self.plan_below(sequence), sequence)

    def plan_below(self, sequence: Sequence[int]) -> TreePlan:
        """Return the plan of the fixed tree, cut where contexts end."""
        assert self.fixed_plan is not None
        depth = self.run.reach.drafted(len(sequence))
        whole = depth >= len(self.fixed_plan.levels)
        return self.fixed_plan if whole else plan_of(self.fixed_plan.tree.down_to(depth))

    @torch.inference_mode()
    def fill_tree(self, plan: TreePlan, sequence: Sequence[int]) -> DraftTree:
        """Draft a planned tree below the last token of the committed sequence."""
        tokens = torch.empty(plan.tree.size, dtype=torch.int64)
        probs = torch.ones(plan.tree.size, dtype=torch.float32)
        known = tokens.numpy()  # the same memory; NumPy is faster for single entries
        known[0] = sequence[-1]
        rows, start = self._rows, 0
        root_position = len(sequence) - 1
        for depth, level in enumerate(plan.levels):
            if depth == 0:
                ids, positions, tree_mask = unseen_tokens(self.session, sequence)
            else:
                ids = torch.from_numpy(known[level.nodes])
                positions = torch.full((len(ids),), root_position + depth)
                tree_mask = level.tree_mask
            logits = self.session.forward(ids, positions, tree_mask, keep=len(level.nodes))
            block, first = draft_probabilities(logits, self.run.sampling)
            check_probabilities(block, "draft")
            drawn = self.run.draft_sampling(block, level.most_children, self.run.generator, first)
            drawn = drawn.take(level.draw_indices.to(block.device))
            tokens[level.children] = drawn
            probs[level.children] = block.take(level.rows.to(block.device) * block.shape[1] + drawn)
            if rows is None:
                rows = self._rows = block.new_empty(self.run.policy.max_inner, block.shape[1])
                self._first_rows = None if first is None else torch.empty_like(rows)
            rows[start : start + len(block)] = block
            if first is not None and self._first_rows is not None:
                self._first_rows[start : start + len(block)] = first
            start += len(block)
        rows = torch.empty(0, 0) if rows is None else rows
        return DraftTree(plan, root_position, tokens, probs, rows, plan.cache_positions, first_rows=self._first_rows)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        commit_path(self.session, draft, path)

    def wait(self) -> None:
        self.session.wait()


class CompiledDrafter(LevelDrafter):
    """Drafts a fixed tree in one call; equal seeds draw the tokens that `LevelDrafter` draws on the same session."""

    def __init__(self, run: DraftRun) -> None:
        super().__init__(run)
        assert isinstance(self.session, CompiledSession) and self.fixed_plan is not None, "`supports` has seen to it"
        self._plan = self.fixed_plan
        self._call = DraftCall(
            self.session, self._plan.levels, drawn=run.draft_sampling is not take_most_likely,
            with_replacement=run.draft_sampling is sample_with_replacement, top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
        )  # fmt: skip

    @staticmethod
    def supports(run: DraftRun) -> bool:
        drawn = run.draft_sampling in COMPILED_SAMPLINGS
        return run.policy.fixed is not None and drawn and isinstance(run.session, CompiledSession)

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        if self.plan_below(sequence) is not self._plan:
            return super().grow(sequence)
        root_position = len(sequence) - 1
        grown = self._call.grow(
            sequence[self.session.length :], root_position=root_position,
            temperature=self.run.sampling.temperature, generator=self.run.generator,
        )  # fmt: skip
        return DraftTree(
            self._plan, root_position, *finite(grown, "draft"), self._plan.cache_positions,
            first_rows=self._call.first_rows,
        )  # fmt: skip
