"""Drafters, which fill each step's tree with the draft's tokens. n = number of tree nodes, V = vocabulary size.

`sequoia_draft` in cpu_kernels (`llama_x86.c`) reimplements `LevelDrafter.fill_tree`; keep the two in sync.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ..models.protocol import Session, causal_mask
from ..trees.tree import TokenTree
from .node_facts import MarginalGains, Occurrence
from .plan import TreePlan, get_tree_plan
from .row_operations import row_operations
from .sampling import SamplingConfig, check_probabilities, draft_probabilities
from .tree_policy import ROOT_ONLY, TreePolicy
from .verifiers import DraftSampling


@dataclass(slots=True)
class DraftTree:
    """One step's drafted tree, which is valid until the drafter's next `grow`.

    Attributes:
        root_position: the root's position in the token sequence and in both sessions; all earlier tokens are committed.
        tokens: int64 [n], token ids, root first.
        probs: float32 or float64 [n], probability of each token given its parent, according to the draft or the lookup;
            1 for the root.
        rows: float32 [.., V], the draft's distributions that children were drawn from; empty without a draft model.
        cache_positions: int64 [n], each node's position in the draft's cache relative to the root's, which is also the
            index in `rows` of the row that its children were drawn from; -1 for a node that the draft did not read.
        marginal_gains: function from the number of candidates to list to the tree's marginal gains; None for a fixed
            tree.
        find: function from (parents, tokens, whether the draft read each node), each [n], to the nodes' occurrences in
            earlier text; None without lookup.
        looked_up: int64 [n], number of leading children of each node that were looked up rather than drawn; None if all
            children were proposed in the same way.
        widths: number of nodes read by each draft pass of a growing tree; empty for a fixed tree.
        first_rows: rows that each node's first drawn child came from, indexed like `rows`; None if they are `rows`
            themselves.
        states: float [n, states, H], hidden states from the target's pass, for a draft head; None without one.
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
        """Return each node's occurrence in earlier text [n], None for a node without one; empty if nothing matched."""
        if self.find is None:
            return ()
        return self.find(self.tree.parents, self.tokens.numpy(), self.cache_positions >= 0)

    def row(self, node: int) -> np.ndarray:
        """Return the draft's distribution after a node, float64 [V]; empty if the draft did not read the node."""
        position = int(self.cache_positions[node])
        return row_operations().to_float64(self.rows[position]) if position >= 0 else np.empty(0)

    def first_row(self, node: int) -> np.ndarray | None:
        """Return the row that a node's first drawn child came from, float64 [V]; None if it came from `row`."""
        position = int(self.cache_positions[node])
        if self.first_rows is None or position < 0 or not self.first_rows[position].any():
            return None
        return row_operations().to_float64(self.first_rows[position])


class Drafter(Protocol):
    """The drafter interface used by the loop; a `reusable` drafter also has a `restart` method (see `RootDrafter`).

    Attributes:
        reusable: whether to reuse its buffers for another run with the same models, tree and sampling settings.
    """

    reusable: bool

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        """Draft one tree below the last committed token; raise FloatingPointError for non-finite logits."""
        ...

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        """Retain only the accepted path of the tree just drafted."""
        ...

    def wait(self) -> None:
        """Wait for the device to finish all queued work."""
        ...


class Reach(NamedTuple):
    """Each model's maximum context length, which limits the depth of trees."""

    target: int
    draft: int

    def target_depth(self, length: int) -> int:
        """Return the maximum depth of a tree below a sequence of `length` tokens."""
        return self.target - length - 1

    def draft_depth(self, length: int) -> int:
        """Return the maximum depth at which the draft proposes tokens; 0 once its context is full."""
        return max(0, min(self.target_depth(length), self.draft - length + 1))


class DraftRun(NamedTuple):
    """The session, policy and sampling settings that a run's drafter uses.

    Attributes:
        session: the draft's session, prefilled with the prompt without its last token; None without a draft model.
        sampling: the draft's settings; top-p and top-k apply only to first children's rows (see `draft_probabilities`).
    """

    session: Session | None
    policy: TreePolicy
    draft_sampling: DraftSampling
    sampling: SamplingConfig
    reach: Reach
    generator: torch.Generator


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return the generator if it is on the device, otherwise a new one on that device, seeded from it."""
    if torch.device(device).type == generator.device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


def first_pass_inputs(session: Session, sequence: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, positions and mask for a step's first draft pass, over all unread tokens up to the root."""
    unseen = sequence[session.length :]
    return torch.tensor(unseen), torch.arange(session.length, len(sequence)), causal_mask(len(unseen))


def commit_path(session: Session, draft: DraftTree, path: tuple[int, ...]) -> None:
    """Commit the accepted path to the draft's session, and pass the target's hidden states on to it."""
    read = [position for position in draft.cache_positions[list(path)].tolist() if position >= 0]
    if read:  # otherwise the next step's first pass reads these tokens
        session.commit(draft.root_position, read)
    if draft.states is not None:
        session.observe_states(draft.root_position, draft.states[list(path)])


class RootDrafter:
    """Drafts only the root, so decoding is autoregressive."""

    reusable = True

    def __init__(self) -> None:
        self.plan = get_tree_plan(ROOT_ONLY)

    def restart(self, generator: torch.Generator) -> None:
        """Prepare for another run, which draws from this generator."""

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        plan = self.plan
        last = torch.tensor(sequence[-1:])
        return DraftTree(plan, len(sequence) - 1, last, torch.ones(1), torch.empty(0, 0), plan.cache_positions)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        pass

    def wait(self) -> None:
        pass


class LevelDrafter:
    """Drafts a fixed tree with one draft pass per level; works with any session.

    Drafters that choose their trees before each step derive from this class and pass a plan to `fill_tree`.
    """

    reusable = False

    def __init__(self, run: DraftRun) -> None:
        assert run.session is not None, "`assemble` opens a session for this drafter"
        self.run = run
        self.session = run.session
        self.fixed_plan = None if run.policy.fixed is None else get_tree_plan(run.policy.fixed)
        self._rows: torch.Tensor | None = None  # allocated on first use, once V is known
        self._first_rows: torch.Tensor | None = None

    @staticmethod
    def supports(run: DraftRun) -> bool:
        """Return whether this drafter supports the run's policy and session."""
        return run.policy.fixed is not None

    def grow(self, sequence: Sequence[int]) -> DraftTree:
        return self.fill_tree(self.plan_below(sequence), sequence)

    def plan_below(self, sequence: Sequence[int]) -> TreePlan:
        """Return the fixed tree's plan, truncated to the depth that fits into the models' contexts."""
        assert self.fixed_plan is not None
        depth = self.run.reach.draft_depth(len(sequence))
        whole = depth >= len(self.fixed_plan.levels)
        return self.fixed_plan if whole else get_tree_plan(self.fixed_plan.tree.cut_to_depth(depth))

    @torch.inference_mode()
    def fill_tree(self, plan: TreePlan, sequence: Sequence[int]) -> DraftTree:
        """Draft a planned tree below the last committed token."""
        tokens = torch.empty(plan.tree.size, dtype=torch.int64)
        probs = torch.ones(plan.tree.size, dtype=torch.float32)
        token_view = tokens.numpy()  # a view, because NumPy accesses single entries faster
        token_view[0] = sequence[-1]
        rows = self._rows
        start = 0
        root_position = len(sequence) - 1
        for depth, level in enumerate(plan.levels):
            if depth == 0:
                ids, positions, tree_mask = first_pass_inputs(self.session, sequence)
            else:
                ids = torch.from_numpy(token_view[level.nodes])
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
