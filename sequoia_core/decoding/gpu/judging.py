"""The judge for GPUs: the pass, the walk and the commit are phases of fixed shape, with one read-back per step."""

from collections.abc import Sequence

import torch

from ...models.protocol import Session
from ...models.tree_cache import CacheSession
from ..drafting import DraftTree
from ..judging import RowJudge
from ..plan import TreePlan
from ..sampling import SamplingConfig, check_probabilities, invert, probabilities
from ..verifiers import Verifier, sequoia_rule, topk_rule
from ..walk import Trial, Walk
from .phases import Phase, StaticPass, is_static, padded
from .walk_by_rank import Decision, RankedTree, follow_by_rank, walk_by_rank


class StaticJudge(RowJudge):
    """Decides on the device for all nodes at once, for the rules that are written that way; else as `RowJudge`."""

    @torch.inference_mode()
    def __init__(self, session: Session, **options) -> None:
        super().__init__(session, **options)
        assert isinstance(session, CacheSession), "only these are static"
        self.held = session
        self.first = torch.zeros(1, dtype=torch.int64, device=session.device)
        self.place: tuple[dict, tuple] | None = None  # where `assemble` keeps it once its run is over, and its key
        self.passes: StaticPass | None = None  # of the step's tree
        self._sizes: dict[tuple, _OneSize] = {}
        self._plan: TreePlan | None = None  # of the step before
        self._own: _OneSize  # of the step
        self.decided: _OneSize | None = None  # whose path is to be kept; None where `RowJudge` walked

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig) -> bool:
        return is_static(session)

    @torch.inference_mode()
    def score(self, draft: DraftTree) -> None:
        plan, again = draft.plan, draft.plan is self._plan
        if not (again and self._own.counts):
            most = max(1, int(plan.child_counts.max()))
            # a tree that comes again has a size of its own, others share a few
            counts = tuple(max(1, int((plan.child_counts > k).sum())) for k in range(most)) if again else ()
            shape = padded(plan.tree.size), most if again else padded(most), padded(plan.tree.depth + 1), counts
            if shape not in self._sizes:
                self._sizes[shape] = _OneSize(self, *shape)
            self._own, self._plan = self._sizes[shape], plan
        self._own.take(draft)
        self.passes = self._own.passes
        self.first.fill_(draft.root_position)
        self._own.logits = self._own.score()
        self.logits = self._own.logits[: plan.tree.size]
        self._rows.clear()

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        self.decided = None
        drawn = not self.sampling.greedy
        if drawn and (draft.looked_up is not None or self.verifier.rule not in (sequoia_rule, topk_rule)):
            if len(draft.rows):
                check_probabilities(draft.rows[draft.cache_positions.max(initial=0)][None], "draft")
            draft.tokens = draft.tokens.cpu()
            return super().walk(draft)
        own, size = self._own, draft.tree.size
        uniforms = self._uniforms(draft) if drawn else torch.zeros(size, dtype=torch.float64)
        own.uniforms[:size] = uniforms
        own.verdict = own.decide()
        # the only device-to-host copy of a step
        flags, tokens, path, masses = own.parts(own.verdict.cpu())
        for finite, role in zip(flags[1:].tolist(), ("target", "draft"), strict=True):
            if not finite:
                raise FloatingPointError(f"the {role} model returned logits that are not finite")
        draft.tokens, self.decided = tokens[:size].long(), own
        nodes = tuple(dict.fromkeys(path.long().tolist()))  # the path stays at the node where it ends
        if self.verifier.rule is topk_rule:  # the numbers have drawn what the target wants, not decided on a child
            uniforms = torch.zeros_like(uniforms)
        return Walk(nodes, int(flags[0]), tuple(_trials(draft, nodes, uniforms.tolist(), masses.tolist())))

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if self.decided is None:
            return super().commit(draft, path)
        self.decided.keep()
        self.held.cache.length = draft.root_position + len(path)


def _trials(
    draft: DraftTree, path: tuple[int, ...], uniforms: Sequence[float], masses: Sequence[tuple[float, float]]
) -> list[Trial]:
    """Return the decisions along a path: at each node on it, the children up to the one that is on it too."""
    kept, trials = set(path), []
    for node in path:
        for child in draft.tree.children(node):
            trials.append(Trial(child, uniforms[child], *masses[child]))
            if child in kept:
                break
    return trials


class _OneSize:
    """The buffers and phases for trees of up to n nodes, and some children and levels, or for one tree.

    Attributes:
        passes: over the nodes; those that pad see themselves and the text.
        decide: returns all that the host needs, float64, see `parts`.
        keep: has the cache keep the path that was decided.
        counts: of one tree, how many nodes have more than k children; () of others.
    """

    def __init__(self, judge: StaticJudge, size: int, children: int, levels: int, counts: tuple[int, ...]) -> None:
        self.judge, self.size, self.depth, self.counts = judge, size, levels - 1, counts
        device, itself = judge.held.device, torch.full((size, size), -torch.inf).fill_diagonal_(0.0)
        self.passes = StaticPass(judge.held, itself, torch.zeros(size, dtype=torch.int64), first=judge.first)
        shapes = (size,), (size,), (size, children), (size,)
        self.tree = RankedTree(*(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes))
        self.uniforms = torch.zeros(size, dtype=torch.float64, device=device)
        self._plan: TreePlan | None = None
        self.logits = self.rows = self.verdict = self._no_rows = torch.empty(0, 0)
        self.score = Phase(self.passes.logits, device)
        self.first_rows: torch.Tensor | None = None
        self.decide = Phase(self._decide, device, self._read)
        self.keep = Phase(self._keep, device, lambda: (self.verdict,))

    def _read(self) -> list[torch.Tensor]:
        return [rows for rows in (self.logits, self.rows, self.first_rows) if rows is not None]

    def take(self, draft: DraftTree) -> None:
        """Take the step's tree; what is fixed is copied once."""
        size, plan = draft.tree.size, draft.plan
        self.passes.ids[:size] = draft.tokens
        self.rows = draft.rows.to(self.uniforms.device) if len(draft.rows) else self._no_rows
        self.first_rows = None if draft.first_rows is None else draft.first_rows.to(self.uniforms.device)
        if plan is self._plan:
            return
        self._plan = plan
        self.passes.tree_mask[:size, :size] = plan.tree_mask
        self.passes.depths[:size] = torch.from_numpy(plan.depths)
        self.passes.depths[size:] = 0  # a larger tree's would lie beyond the context near its end
        ranked = RankedTree.of(plan, torch.from_numpy(draft.cache_positions), self.size, self.tree.children.shape[1])
        for buffer, part in zip(self.tree, ranked, strict=True):
            buffer.copy_(part)

    def _decide(self) -> torch.Tensor:
        decision, tokens = self._decision(), self.passes.ids
        finite = [self.logits.amax(-1).isfinite().all()]
        finite.append(self.rows[self.tree.rows, 0].isfinite().all() if len(self.rows) else torch.ones_like(finite[0]))
        parts = (decision.bonus, *(flag[None] for flag in finite), tokens, decision.path, decision.masses.flatten())
        return torch.cat([part.double() for part in parts])

    def _decision(self) -> Decision:
        judge, tokens = self.judge, self.passes.ids
        if judge.sampling.greedy:
            return follow_by_rank(self.tree, tokens, self.logits.max(-1).indices, depth=self.depth)
        target = probabilities(self.logits, judge.sampling).double()
        target = target / target.sum(1, keepdim=True)
        if judge.verifier.rule is topk_rule:  # the target draws after every node, and the walk follows what it drew
            wanted = invert(target.cumsum(1), self.uniforms[:, None])[:, 0]
            return follow_by_rank(self.tree, tokens, wanted, depth=self.depth)
        draft = self.rows.double() if len(self.rows) else target  # which nothing was drawn from
        draft = draft / draft.sum(1, keepdim=True)
        first = None if self.first_rows is None else self.first_rows.double()
        first = None if first is None else first / first.sum(1, keepdim=True)
        return walk_by_rank(
            self.tree, tokens, target, draft, self.uniforms, depth=self.depth, first=first, counts=self.counts
        )

    def parts(self, verdict: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split a verdict: the bonus token and both models' flags [3], tokens, path, masses [n, 2]."""
        flags, tokens, path, masses = verdict.split([3, self.size, self.depth + 1, 2 * self.size])
        return flags, tokens, path, masses.view(-1, 2)

    def _keep(self) -> torch.Tensor:
        path = self.parts(self.verdict)[2].long()
        return self.judge.held.cache.gather(self.judge.first, path)
