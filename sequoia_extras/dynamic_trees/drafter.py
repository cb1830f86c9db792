"""The drafter for dynamic trees: grows each step's tree with the policy's expansion, and adapts to the run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sequoia_core.decoding.drafting import DraftRun, DraftTree, RootDrafter, commit_path
from sequoia_core.decoding.node_facts import MarginalGains

from .compiled_growing import CompiledGrower
from .expansion import Nodes
from .growing_tree import GrowingTree
from .marginal_gains import marginal_gains
from .plain_growing import DraftRows, PlainGrower
from .running_lookup import LookUp
from .step_costs import RunCosts
from .top_k_expansion import TopKExpansion


class GrowingDrafter:
    """Drafts trees for a `GrowingTree` policy.

    The draft may read nodes that are pruned later and may leave other nodes unread, so each node's position in the
    cache is recorded (`Nodes.cache_positions`).
    """

    reusable = False

    def __init__(self, run: DraftRun) -> None:
        policy = run.policy
        assert isinstance(policy, GrowingTree), "checked by `supports`"
        self.run = run
        self.session = run.session
        self.policy = policy
        self._growers: list[Any] = [grower(run, policy) for grower in (CompiledGrower, PlainGrower)]
        self._make_expansion = policy.expansions()
        self._look_up = None if policy.index is None else LookUp(policy.index, run.reach.target, policy)
        self._costs = None if policy.profile is None else RunCosts(policy.costs, policy.initial_rate)
        self.controller = policy.controller
        self._budget = policy.look_up_budget
        self._root = RootDrafter()

    @staticmethod
    def supports(run: DraftRun) -> bool:
        return isinstance(run.policy, GrowingTree) and run.policy.fixed is None

    def expansion(self, context: int) -> TopKExpansion:
        """Return the expansion policy of the next tree, after `context` committed tokens."""
        costs = None if self._costs is None else self._costs.token_costs(context)
        return self._make_expansion(self.controller, costs, self._look_up)

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        length = len(sequence)
        reach = self.run.reach
        self.paused = self._budget is not None and self._budget.paused
        if self.paused:
            return self._root.grow(sequence)
        if self._look_up is not None:
            gain = 1.0 if self.controller is None else self.controller.lookup_gain
            depth = min(self.policy.max_depth, reach.target_depth(length))
            self._look_up.begin_step(sequence, max_depth=depth, gain=gain)
        expansion: Any = self.expansion(length)
        look_up: LookUp | None = expansion.look_up
        depth = reach.draft_depth(length)
        if depth < self.policy.max_depth:
            expansion = replace(expansion, bounds=expansion.bounds.limit_depth(depth))
        grower = next(grower for grower in self._growers if grower.supports(expansion))
        plan, nodes, self.widths = grower.grow(expansion, sequence)
        self.nodes = nodes  # valid until the next tree is grown
        self.expected = sum(nodes.scores.tolist())  # expected number of committed tokens
        rows = torch.empty(0, 0) if grower.rows is None else grower.rows
        in_turn = look_up is not None and expansion.draws
        return DraftTree(
            plan,
            length - 1,
            torch.from_numpy(nodes.tokens),
            torch.from_numpy(nodes.probs),
            rows,
            nodes.cache_positions,
            marginal_gains=None if self.session is None else partial(self._marginal_gains, expansion, nodes, rows),
            find=None if look_up is None else look_up.text.occurrences,
            looked_up=np.bincount(nodes.parents[nodes.looked_up > 0], minlength=nodes.size) if in_turn else None,
            widths=self.widths,
            first_rows=grower.first_rows,
        )

    def _marginal_gains(self, expansion: TopKExpansion, nodes: Nodes, rows: torch.Tensor, limit: int) -> MarginalGains:
        """Return the gains and costs of the latest tree's nodes; `rows` are those of its `DraftTree`."""
        read = rows[torch.from_numpy(nodes.cache_positions[nodes.cache_positions >= 0])]
        return marginal_gains(expansion, nodes, DraftRows(read, self.run), limit=limit)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self._budget is not None and self._costs is not None:
            saved = 0.0 if self.paused else self._costs.saved_sec(len(path), draft.tree.size)
            self._budget.record_step(self._costs.plain_sec(), saved)
        if self.session is not None:
            commit_path(self.session, draft, path)
        if self.paused:
            return
        accepted = 0
        expected = 0.0
        if self._look_up is not None:
            nodes = self.nodes
            text_only = (nodes.looked_up > 0) & (nodes.cache_positions[nodes.parents] < 0)
            # Without a draft, the whole step is credited to the text.
            text_only[0] = self.session is None
            accepted = int(text_only[list(path)].sum())
            expected = float(nodes.scores[text_only].sum())
        self.record_step(draft.tree.size, len(path), accepted, expected)

    def record_step(self, size: int, tokens: float, accepted: int, expected: float) -> None:
        """Update the costs and the controller after a step with a tree of `size` nodes that committed `tokens`.

        Args:
            accepted: number of accepted looked-up nodes whose parents the draft did not read.
            expected: expected value of that number.
        """
        if self._costs is not None:
            self._costs.record_step(tokens, size, self.widths)
        if self.controller is not None:
            controller = self.controller.adjust_threshold(size, self.policy.max_size)
            controller = controller.correct_lookup_gain(accepted, expected)
            self.controller = controller.correct_gain(tokens - accepted, self.expected - expected)

    def wait(self) -> None:
        if self.session is not None:
            self.session.wait()
