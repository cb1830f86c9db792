"""The drafter of trees that grow: asks the policy for each step's expansion, grows the tree and follows the run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..drafting import DraftRun, DraftTree, RootDrafter, commit_path
from ..node_facts import MarginalGains
from .compiled_growing import CompiledGrower
from .expansion import Nodes
from .growing_tree import GrowingTree
from .marginal_gains import marginal_gains
from .plain_growing import DraftRows, PlainGrower
from .running_lookup import LookUp
from .step_costs import RunCosts
from .top_k_expansion import TopKExpansion


class GrowingDrafter:
    """Drafts the trees of a `GrowingTree`.

    The draft may read nodes that are not kept, and keep nodes without children, so each node's position in the cache is
    recorded (`Nodes.cache_positions`).
    """

    def __init__(self, run: DraftRun) -> None:
        policy = run.policy
        assert isinstance(policy, GrowingTree), "`supports` has seen to it"
        self.run, self.session, self.policy = run, run.session, policy
        self._growers: list[Any] = [kind(run, policy) for kind in (CompiledGrower, PlainGrower)]
        self._expansion = policy.expansions()
        self._look_up = None if policy.index is None else LookUp(policy.index, run.reach.target, policy)
        self._costs = None if policy.profile is None else RunCosts(policy.costs, policy.start)
        self.controller = policy.controller
        self._budget = policy.look_up_budget
        self._root = RootDrafter()

    @staticmethod
    def supports(run: DraftRun) -> bool:
        return isinstance(run.policy, GrowingTree) and run.policy.fixed is None

    def expansion(self, context: int) -> TopKExpansion:
        """Return the expansion policy of the next tree; `context` tokens are committed."""
        costs = None if self._costs is None else self._costs.token_costs(context)
        return self._expansion(self.controller, costs, self._look_up)

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        length, policy, reach = len(sequence), self.policy, self.run.reach
        self.rested = self._budget is not None and self._budget.rests
        if self.rested:
            return self._root.grow(sequence)
        if self._look_up is not None:
            gain = 1.0 if self.controller is None else self.controller.looked_up_gain
            self._look_up.begin(sequence, max_depth=min(policy.max_depth, reach.verified(length)), gain=gain)
        expansion: Any = self.expansion(length)
        look_up: LookUp | None = expansion.look_up
        depth = reach.drafted(length)
        if depth < policy.max_depth:
            expansion = replace(expansion, bounds=expansion.bounds.down_to(depth))
        grower = next(own for own in self._growers if own.supports(expansion))
        plan, nodes, self.widths = grower.grow(expansion, sequence)
        self.nodes = nodes  # of the tree just grown; the next one may overwrite them
        self.expected = sum(nodes.scores.tolist())  # tokens that the step is expected to commit
        rows = torch.empty(0, 0) if grower.rows is None else grower.rows
        in_turn = look_up is not None and expansion.draws
        return DraftTree(
            plan, length - 1, torch.from_numpy(nodes.tokens), torch.from_numpy(nodes.probs), rows,
            nodes.cache_positions,
            marginal_gains=None if self.session is None else partial(self._marginal_gains, expansion, nodes, rows),
            find=None if look_up is None else look_up.text.occurrences,
            looked_up=np.bincount(nodes.parents[nodes.looked_up > 0], minlength=nodes.size) if in_turn else None,
            widths=self.widths, first_rows=grower.first_rows,
        )  # fmt: skip

    def _marginal_gains(self, expansion: TopKExpansion, nodes: Nodes, rows: torch.Tensor, most: int) -> MarginalGains:
        """Say what the nodes of the tree just drafted add and cost; `rows` as in its `DraftTree`."""
        read = rows[torch.from_numpy(nodes.cache_positions[nodes.cache_positions >= 0])]
        return marginal_gains(expansion, nodes, DraftRows(read, self.run), most=most)

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self._budget is not None and self._costs is not None:
            saved = 0.0 if self.rested else self._costs.saved_sec(len(path), draft.tree.size)
            self._budget.seen(self._costs.plain_sec(), saved)
        if self.session is not None:
            commit_path(self.session, draft, path)
        if self.rested:
            return
        nodes, accepted, expected = self.nodes, 0, 0.0  # of nodes that only the text proposed
        if self._look_up is not None:
            alone = (nodes.looked_up > 0) & (nodes.cache_positions[nodes.parents] < 0)
            alone[0] = self.session is None  # then the text answers for the whole step
            accepted, expected = int(alone[list(path)].sum()), float(nodes.scores[alone].sum())
        self.follow(draft.tree.size, len(path), accepted, expected)

    def follow(self, size: int, tokens: float, accepted: int, expected: float) -> None:
        """Follow the run after a step of so many nodes and tokens.

        Args:
            accepted, expected: how many of them are looked-up nodes that the draft did not read, and how many were
                expected.
        """
        if self._costs is not None:
            self._costs.seen(tokens, size, self.widths)
        if self.controller is not None:
            controller = self.controller.after(size, self.policy.max_size).looked_up(accepted, expected)
            self.controller = controller.seen(tokens - accepted, self.expected - expected)

    def wait(self) -> None:
        if self.session is not None:
            self.session.wait()
