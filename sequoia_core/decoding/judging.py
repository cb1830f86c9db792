"""Judges: each step, score the drafted tree in one target pass, walk it, and keep the accepted path. n = tree nodes."""

from collections.abc import Callable

import numpy as np
import torch

from ..models.protocol import Session
from ..native import sampling_ops
from ..native.walker import Walker
from .drafting import DraftTree
from .explaining import NodeRows, explain_path
from .sampling import SamplingConfig, distribution, finite, most_likely, token_probabilities
from .verifiers import VERIFIERS, Verifier
from .walk import WALKS, ScoredTree, Trial, Walk, walk_greedily, walk_tree

COMPILED_RULES = {verifier.rule: name for name, verifier in VERIFIERS.items() if name in sampling_ops.RULES}


class RowJudge:
    """Walks by the verifier's rule in Python, looking at the rows it needs, with any session; others derive from it.

    Args:
        session: holds all of the prompt except its last token.
        explained_by: sampling settings for `target_probs` and `path_rows`, which are only displayed.
    """

    def __init__(
        self,
        session: Session,
        *,
        verifier: Verifier,
        sampling: SamplingConfig,
        explained_by: SamplingConfig,
        generator: torch.Generator,
    ) -> None:
        self.session, self.verifier, self.sampling = session, verifier, sampling
        self.explained_by, self.generator = explained_by, generator
        self._rows: dict[int, np.ndarray] = {}  # of the tree that was scored last, those that a walk looked at

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig) -> bool:
        """Whether this judge can walk by that verifier; `assemble` has already checked the device."""
        return True

    @torch.inference_mode()
    def score(self, draft: DraftTree) -> None:
        """Run the target over the drafted tree."""
        plan, draft.tokens = draft.plan, draft.tokens.cpu()
        positions = torch.from_numpy(plan.depths + draft.root_position)
        self.logits = self.session.forward(draft.tokens, positions, plan.tree_mask, keep=plan.tree.size)
        draft.states = self.session.states
        self._rows.clear()

    def _row(self, node: int) -> np.ndarray:
        """Return the target's distribution after a node, float64 [V]."""
        if node not in self._rows:
            self._rows[node] = distribution(self.logits[node], self.sampling, "target")
        return self._rows[node]

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        """Decide the accepted path and the bonus token; FloatingPointError for logits that are not finite."""
        if self.sampling.greedy:
            wanted = most_likely(self.logits, "target").tolist()
            return walk_greedily(draft.tree, draft.tokens.tolist(), wanted.__getitem__)
        uniform = iter(self._uniforms(draft).tolist()).__next__
        walk = WALKS.get(self.verifier.rule, walk_tree)
        return walk(_scored(draft, self._row), rule=self.verifier.rule, uniform=uniform)

    def _uniforms(self, draft: DraftTree) -> torch.Tensor:
        """Draw one number in [0, 1) for each trial there can be and for the bonus token, float64 [n]."""
        return torch.rand(draft.tree.size, generator=self.generator, dtype=torch.float64)

    @torch.inference_mode()
    def target_probs(self, draft: DraftTree) -> tuple[float, ...]:
        """Return what the target gives every node's token after its parent [n]; 1 for the root."""
        if draft.tree.size == 1:
            return (1.0,)
        probs = token_probabilities(
            self.logits, self.explained_by, draft.plan.inner, draft.plan.child_starts, draft.tokens[1:], "target"
        )
        return (1.0, *probs.tolist())

    @torch.inference_mode()
    def path_rows(self, draft: DraftTree, walk: Walk, most: int) -> tuple[NodeRows, ...]:
        """Return the most likely tokens of both models along the accepted path, `most` of each row."""
        scored = _scored(draft, self._row if self.explained_by is self.sampling else self._explained_row)
        return explain_path(
            scored, walk, verifier=None if self.sampling.greedy else self.verifier, most=most,
            sampling=self.explained_by, drawn=draft.find is None,
        )  # fmt: skip

    def _explained_row(self, node: int) -> np.ndarray:
        return distribution(self.logits[node], self.explained_by, "target")

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        """Keep of the scored tree only the nodes of the accepted path."""
        self.session.commit(draft.root_position, path)

    def wait(self) -> None:
        """Return when the device has finished."""
        self.session.wait()


def _scored(draft: DraftTree, target_row: Callable[[int], np.ndarray]) -> ScoredTree:
    return ScoredTree(draft.tree, draft.tokens.tolist(), target_row, draft.row, draft.first_row, draft.looked_up)


class CompiledJudge(RowJudge):
    """Walks in one call of compiled code, trial by trial as `RowJudge` does: equal seeds give equal paths."""

    def __init__(self, session: Session, **options) -> None:
        super().__init__(session, **options)
        self._walker = Walker()

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig) -> bool:
        if session.logits_dtype != torch.float32 or sampling_ops.compiled() is None:
            return False
        return sampling.greedy or (sampling.plain and verifier.rule in COMPILED_RULES)

    @torch.inference_mode()
    def walk(self, draft: DraftTree) -> Walk:
        if not sampling_ops.supports(self.logits):  # under autocast a model returns another dtype than its own
            return super().walk(draft)
        plan, walker = draft.plan, self._walker
        walker.take(plan.first_children, plan.child_counts, draft.cache_positions, draft.looked_up)
        if self.sampling.greedy:
            path, bonus, nodes = finite(walker.greedily(self.logits, draft.tokens), "target")
            accepted = set(path)
            return Walk(tuple(path), bonus, tuple(Trial(n, 0.0, float(n in accepted), 1.0) for n in nodes))
        result = walker.sampled(
            COMPILED_RULES[self.verifier.rule], self.logits, self.sampling.temperature, draft.tokens, draft.rows,
            self._uniforms(draft),
        )  # fmt: skip
        path, bonus, trials = finite(result, "target")
        return Walk(tuple(path), bonus, tuple(Trial(*trial) for trial in trials))
