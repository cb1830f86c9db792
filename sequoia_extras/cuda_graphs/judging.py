"""Judge for GPUs: pass, walk and commit are phases with fixed shapes, with one device-to-host copy per step."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.judging import RowJudge
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.sampling import SamplingConfig, check_probabilities, probabilities
from sequoia_core.decoding.verifiers import Rule, Verifier, sequoia_rule, specinfer_rule, topk_rule, traversal_rule
from sequoia_core.decoding.walk import Trial, Walk
from sequoia_core.models.protocol import Session
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.trees.tree import TokenTree

from .phases import Phase, StaticPass, is_static, visible_slots
from .walk_by_rank import (
    Decision,
    RankedTree,
    ScoredNodes,
    TreeShape,
    ascend_by_rank,
    follow_by_rank,
    follow_samples,
    walk_by_rank,
)


class StaticJudge(RowJudge):
    """Judges all nodes at once on the device; falls back to `RowJudge` for sampled trees with looked-up children.

    Attributes:
        first: int64 [1] on the device, the root's position.
        passes: the pass over the current tree; None before the first tree.
    """

    reusable = True

    @torch.inference_mode()
    def __init__(self, session: Session, **options) -> None:
        super().__init__(session, **options)
        assert isinstance(session, CacheSession), "checked by `supports`"
        self.static_session = session
        self.first = torch.zeros(1, dtype=torch.int64, device=session.device)
        self.passes: StaticPass | None = None
        self._buffers_by_shape: dict[TreeShape, _TreeBuffers] = {}
        # Plan and buffers of the previous step, until `score` is called.
        self._plan: TreePlan | None = None
        self._buffers: _TreeBuffers
        # The buffers that contain the path to commit; None if `RowJudge` did the walk.
        self._decided: _TreeBuffers | None = None

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig, on_cpu: bool) -> bool:
        return is_static(session)

    @torch.inference_mode()
    def score(self, draft: DraftTree) -> None:
        plan = draft.plan
        is_repeated = plan is self._plan
        if not (is_repeated and self._buffers.shape.is_exact):
            # A repeated tree gets buffers of its exact shape; other trees share a few shapes.
            from_leaves = not self.sampling.greedy and RANKED_RULES[self.verifier.rule].from_leaves
            shape = TreeShape.from_plan(plan, is_exact=is_repeated, from_leaves=from_leaves)
            if shape not in self._buffers_by_shape:
                self._buffers_by_shape[shape] = _TreeBuffers(self, shape, plan)
            self._buffers = self._buffers_by_shape[shape]
            self._plan = plan
        self._buffers.load_tree(draft)
        self.passes = self._buffers.tree_pass
        self.first.fill_(draft.root_position)
        stop = draft.root_position + len(self.passes.ids)
        self._buffers.logits = self._buffers.score(visible_slots(stop, self.static_session.cache.capacity))
        self.logits = self._buffers.logits[: plan.tree.size]
        if self.passes.states is not None:
            draft.states = self.passes.states[: plan.tree.size]
        self._rows.clear()

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        self._decided = None
        drawn = not self.sampling.greedy
        if drawn and draft.looked_up is not None:
            if len(draft.rows):
                check_probabilities(draft.rows[draft.cache_positions.max(initial=0)][None], "draft")
            draft.tokens = draft.tokens.cpu()
            return super().walk(draft)
        buffers = self._buffers
        size = draft.tree.size
        uniforms = self._uniforms(draft) if drawn else torch.zeros(size, dtype=torch.float64)
        buffers.uniforms[:size] = uniforms
        buffers.verdict = buffers.decide()
        # This is the only device-to-host copy of a step.
        flags, tokens, path, masses = buffers.split_verdict(buffers.verdict.cpu())
        for is_finite, role in zip(flags[1:].tolist(), ("target", "draft"), strict=True):
            if not is_finite:
                raise FloatingPointError(f"the {role} model returned non-finite logits")
        draft.tokens = tokens[:size].long()
        self._decided = buffers
        # The path is padded to the tree's depth by repeating its last node.
        nodes = tuple(dict.fromkeys(path.long().tolist()))
        rule = RANKED_RULES[self.verifier.rule]
        numbers = (uniforms * rule.by_uniform).tolist()
        pairs = masses.tolist()
        offered = rule.list_offers(draft.tree, nodes)
        trials = tuple(Trial(node, numbers[node], *pairs[node]) for node in offered if pairs[node][1])
        return Walk(nodes, int(flags[0]), trials)

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self._decided is None:
            return super().commit(draft, path)
        self._decided.commit_path()
        self.static_session.cache.commit_until(draft.root_position + len(path))


def _offers_from_root(tree: TokenTree, path: tuple[int, ...]) -> Iterator[int]:
    """Yield the children of each node of the path up to the accepted one."""
    for node in path:
        for child in tree.children(node):
            yield child
            if child in path:
                break


def _offers_from_leaves(tree: TokenTree, path: tuple[int, ...], node: int = 0) -> Iterator[int]:
    """Yield the nodes at or below `node` in post-order, up to the end of the path."""
    for child in tree.children(node):
        yield from _offers_from_leaves(tree, path, child)
        if child in path:
            return
    yield node


class _RankedRule(NamedTuple):
    """How a verifier's rule is applied on the device.

    Attributes:
        decide: function from (tree, nodes, shape) to the `Decision`.
        list_offers: function from (tree, path) to the nodes that may have had trials, in order.
        from_leaves: whether `decide` offers children in the order of `RankedTree.offers`.
        by_uniform: whether uniforms accept children; otherwise they draw the target's tokens.
    """

    decide: Callable[[RankedTree, ScoredNodes, TreeShape], Decision]
    list_offers: Callable[[TokenTree, tuple[int, ...]], Iterator[int]] = _offers_from_root
    from_leaves: bool = False
    by_uniform: bool = True


RANKED_RULES: dict[Rule, _RankedRule] = {
    sequoia_rule: _RankedRule(walk_by_rank),
    specinfer_rule: _RankedRule(partial(walk_by_rank, replaced=True)),
    topk_rule: _RankedRule(follow_samples, by_uniform=False),
    traversal_rule: _RankedRule(ascend_by_rank, _offers_from_leaves, from_leaves=True),
}


class _TreeBuffers:
    """Buffers and phases for all trees of a shape; `plan` is that of one of them.

    Attributes:
        tree_pass: the pass over the nodes; padding nodes attend only to themselves and the committed tokens.
        decide: phase that returns everything the host needs, float64 (see `split_verdict`).
        commit_path: phase that commits the accepted path to the cache.
    """

    def __init__(self, judge: StaticJudge, shape: TreeShape, plan: TreePlan) -> None:
        self.judge = judge
        self.shape = shape
        size = shape.size
        session = judge.static_session
        device = session.device
        self_mask = torch.full((size, size), -torch.inf).fill_diagonal_(0.0)
        self.tree_pass = StaticPass(session, self_mask, torch.zeros(size, dtype=torch.int64), first=judge.first)
        ranked = RankedTree.from_plan(plan, torch.from_numpy(plan.cache_positions), shape)
        self.tree = RankedTree(*(part.to(device) for part in ranked))
        self.uniforms = torch.zeros(size, dtype=torch.float64, device=device)
        self._plan: TreePlan | None = None
        self._no_rows = torch.empty(0, 0)
        self.logits = self.rows = self.verdict = self._no_rows
        self.first_rows: Tensor | None = None
        self.score = Phase(self.tree_pass.logits, device)
        self.decide = Phase(self._decide, device, self._decision_inputs)
        self.commit_path = Phase(self._gather_path, device, lambda: (self.verdict,))

    def _decision_inputs(self) -> list[Tensor]:
        return [rows for rows in (self.logits, self.rows, self.first_rows) if rows is not None]

    def load_tree(self, draft: DraftTree) -> None:
        """Copy the step's tree into the buffers; data that depend only on its plan are copied once."""
        size = draft.tree.size
        plan = draft.plan
        self.tree_pass.ids[:size] = draft.tokens
        self.rows = draft.rows.to(self.uniforms.device) if len(draft.rows) else self._no_rows
        self.first_rows = None if draft.first_rows is None else draft.first_rows.to(self.uniforms.device)
        if plan is self._plan:
            return
        self._plan = plan
        self.tree_pass.tree_mask[:size, :size] = plan.tree_mask
        self.tree_pass.depths[:size] = torch.from_numpy(plan.depths)
        # Depths left over from a larger tree could exceed the context.
        self.tree_pass.depths[size:] = 0
        cache_positions = torch.from_numpy(draft.cache_positions)
        for buffer, values in zip(self.tree, RankedTree.from_plan(plan, cache_positions, self.shape), strict=True):
            buffer.copy_(values)

    def _decide(self) -> Tensor:
        decision = self._decision()
        finite = self.logits.amax(-1).isfinite().all()[None]
        draft_finite = (
            self.rows[self.tree.rows, 0].isfinite().all()[None] if len(self.rows) else torch.ones_like(finite)
        )
        parts = (decision.bonus, finite, draft_finite, self.tree_pass.ids, decision.path, decision.masses.flatten())
        return torch.cat([part.double() for part in parts])

    def _decision(self) -> Decision:
        judge = self.judge
        tokens = self.tree_pass.ids
        if judge.sampling.greedy:
            return follow_by_rank(self.tree, tokens, self.logits.max(-1).indices, self.shape)
        target = probabilities(self.logits, judge.sampling).double()
        target = target / target.sum(1, keepdim=True)
        # A lone root has no draft rows; the target's rows take their place, but are not read.
        draft = self.rows if len(self.rows) else target
        nodes = ScoredNodes(tokens, target, draft, self.uniforms, self.first_rows)
        return RANKED_RULES[judge.verifier.rule].decide(self.tree, nodes, self.shape)

    def split_verdict(self, verdict: Tensor) -> tuple[Tensor, ...]:
        """Split a verdict into bonus token and both models' finite flags [3], tokens, path and masses [n, 2]."""
        flags, tokens, path, masses = verdict.split([3, self.shape.size, self.shape.levels, 2 * self.shape.size])
        return flags, tokens, path, masses.view(-1, 2)

    def _gather_path(self) -> Tensor:
        path = self.split_verdict(self.verdict)[2].long()
        return self.judge.static_session.cache.gather(self.judge.first, path)
