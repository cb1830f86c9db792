"""Judge for GPUs: pass, walk and commit are phases with fixed shapes, with one device-to-host copy per step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.draws import invert
from sequoia_core.decoding.judging import RowJudge
from sequoia_core.decoding.plan import TreePlan, padded
from sequoia_core.decoding.sampling import SamplingConfig, check_probabilities, probabilities
from sequoia_core.decoding.verifiers import Verifier, sequoia_rule, topk_rule
from sequoia_core.decoding.walk import Trial, Walk
from sequoia_core.models.protocol import Session
from sequoia_core.models.tree_cache import CacheSession

from .phases import Phase, StaticPass, is_static, visible_slots
from .walk_by_rank import Decision, RankedTree, follow_by_rank, walk_by_rank


class StaticJudge(RowJudge):
    """Judges all nodes at once on the device if the rule is implemented there; otherwise falls back to `RowJudge`.

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
        self._buffers_by_shape: dict[tuple, _TreeBuffers] = {}
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
        if not (is_repeated and self._buffers.counts):
            # A repeated tree gets buffers of its exact shape; other trees share a few shapes.
            most = max(1, int(plan.child_counts.max()))
            counts: tuple[int, ...] = ()
            if is_repeated:
                counts = tuple(max(1, int((plan.child_counts > k).sum())) for k in range(most))
            children = most if is_repeated else padded(most)
            shape = (padded(plan.tree.size), children, padded(plan.tree.depth + 1), counts)
            if shape not in self._buffers_by_shape:
                self._buffers_by_shape[shape] = _TreeBuffers(self, *shape)
            self._buffers = self._buffers_by_shape[shape]
            self._plan = plan
        self._buffers.load_tree(draft)
        self.passes = self._buffers.tree_pass
        self.first.fill_(draft.root_position)
        stop = draft.root_position + self._buffers.size
        self._buffers.logits = self._buffers.score(visible_slots(stop, self.static_session.cache.capacity))
        self.logits = self._buffers.logits[: plan.tree.size]
        if self.passes.states is not None:
            draft.states = self.passes.states[: plan.tree.size]
        self._rows.clear()

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        self._decided = None
        drawn = not self.sampling.greedy
        if drawn and (draft.looked_up is not None or self.verifier.rule not in (sequoia_rule, topk_rule)):
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
        # With this rule, the uniforms were used to draw the target's tokens, not to accept or reject children.
        if self.verifier.rule is topk_rule:
            uniforms = torch.zeros_like(uniforms)
        return Walk(nodes, int(flags[0]), tuple(_trials(draft, nodes, uniforms.tolist(), masses.tolist())))

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self._decided is None:
            return super().commit(draft, path)
        self._decided.commit_path()
        self.static_session.cache.length = draft.root_position + len(path)


def _trials(
    draft: DraftTree, path: tuple[int, ...], uniforms: Sequence[float], masses: Sequence[tuple[float, float]]
) -> list[Trial]:
    """Return the trials along a path: at each of its nodes, those of the children up to the accepted one."""
    accepted = set(path)
    trials = []
    for node in path:
        for child in draft.tree.children(node):
            trials.append(Trial(child, uniforms[child], *masses[child]))
            if child in accepted:
                break
    return trials


class _TreeBuffers:
    """Buffers and phases for one tree, or for all trees with up to `size` nodes, `children` per node and `levels`.

    Attributes:
        tree_pass: the pass over the nodes; padding nodes attend only to themselves and the committed tokens.
        decide: phase that returns everything the host needs, float64 (see `split_verdict`).
        commit_path: phase that commits the accepted path to the cache.
        counts: for one tree, the number of nodes with more than k children, for each k; otherwise ().
    """

    def __init__(self, judge: StaticJudge, size: int, children: int, levels: int, counts: tuple[int, ...]) -> None:
        self.judge = judge
        self.size = size
        self.depth = levels - 1
        self.counts = counts
        session = judge.static_session
        device = session.device
        self_mask = torch.full((size, size), -torch.inf).fill_diagonal_(0.0)
        self.tree_pass = StaticPass(session, self_mask, torch.zeros(size, dtype=torch.int64), first=judge.first)
        shapes = ((size,), (size,), (size, children), (size,))
        self.tree = RankedTree(*(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes))
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
        ranked = RankedTree.from_plan(plan, cache_positions, self.size, self.tree.children.shape[1])
        for buffer, values in zip(self.tree, ranked, strict=True):
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
            return follow_by_rank(self.tree, tokens, self.logits.max(-1).indices, depth=self.depth)
        target = _normalized(probabilities(self.logits, judge.sampling))
        # A target token is drawn after every node, and the walk follows these tokens.
        if judge.verifier.rule is topk_rule:
            wanted = invert(target.cumsum(1), self.uniforms[:, None])[:, 0]
            return follow_by_rank(self.tree, tokens, wanted, depth=self.depth)
        # A lone root has no draft rows; the target's rows take their place, but are not read.
        draft = _normalized(self.rows if len(self.rows) else target)
        first = None if self.first_rows is None else _normalized(self.first_rows)
        return walk_by_rank(
            self.tree, tokens, target, draft, self.uniforms, depth=self.depth, first=first, counts=self.counts
        )

    def split_verdict(self, verdict: Tensor) -> tuple[Tensor, ...]:
        """Split a verdict into bonus token and both models' finite flags [3], tokens, path and masses [n, 2]."""
        flags, tokens, path, masses = verdict.split([3, self.size, self.depth + 1, 2 * self.size])
        return flags, tokens, path, masses.view(-1, 2)

    def _gather_path(self) -> Tensor:
        path = self.split_verdict(self.verdict)[2].long()
        return self.judge.static_session.cache.gather(self.judge.first, path)


def _normalized(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows / rows.sum(1, keepdim=True)
