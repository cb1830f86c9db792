"""Judge for models on the CPU, using `sampling_ops.c`. n = tree nodes."""

import torch

from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.judging import RowJudge
from sequoia_core.decoding.sampling import SamplingConfig, require_finite
from sequoia_core.decoding.verifiers import VERIFIERS, Verifier
from sequoia_core.decoding.walk import Trial, Walk
from sequoia_core.models.protocol import Session

from . import sampling_ops
from .walker import Walker

COMPILED_RULES = {verifier.rule: name for name, verifier in VERIFIERS.items() if name in sampling_ops.RULES}


class CompiledJudge(RowJudge):
    """Walks each tree in one compiled call, trial by trial like `RowJudge`, so equal seeds give equal paths."""

    def __init__(self, session: Session, **options) -> None:
        super().__init__(session, **options)
        self._walker = Walker()

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig, on_cpu: bool) -> bool:
        if not on_cpu or session.logits_dtype != torch.float32 or sampling_ops.sampling_kernels() is None:
            return False
        return sampling.greedy or (sampling.plain and verifier.rule in COMPILED_RULES)

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        # Under autocast, a model may return logits in a dtype other than its own.
        if not sampling_ops.supports(self.logits):
            return super().walk(draft)
        plan = draft.plan
        walker = self._walker
        walker.set_tree(plan.first_children, plan.child_counts, draft.cache_positions, draft.looked_up)
        if self.sampling.greedy:
            path, bonus, nodes = require_finite(walker.follow_greedily(self.logits, draft.tokens), "target")
            trials = [(node, 0.0, float(node in path), 1.0) for node in nodes]
        else:
            result = walker.walk_sampled(
                COMPILED_RULES[self.verifier.rule],
                self.logits,
                self.sampling.temperature,
                draft.tokens,
                draft.rows,
                self._uniforms(draft),
            )
            path, bonus, trials = require_finite(result, "target")
        return Walk(tuple(path), bonus, tuple(Trial(*trial) for trial in trials))
