"""Judges, which score each drafted tree in one target pass, walk it, and commit the accepted path.

n = number of tree nodes.
"""

from collections.abc import Callable

import numpy as np
import torch

from ..models.protocol import Session
from .drafting import DraftTree
from .explaining import NodeRows, explain_path
from .sampling import SamplingConfig, distribution, most_likely, token_probabilities
from .verifiers import Verifier
from .walk import WALKS, ScoredTree, Walk, walk_greedily, walk_tree


class RowJudge:
    """Walks trees by the verifier's rule in Python, computing rows on demand; works with any session.

    The other judges derive from this class.

    Args:
        session: the target's session, prefilled with the prompt without its last token.
        explained_by: sampling settings for `target_probs` and `path_rows`, which are only displayed.

    Attributes:
        reusable: whether to reuse its buffers for another run with the same models, tree and sampling settings.
    """

    reusable = False

    def __init__(
        self,
        session: Session,
        *,
        verifier: Verifier,
        sampling: SamplingConfig,
        explained_by: SamplingConfig,
        generator: torch.Generator,
    ) -> None:
        self.session = session
        self.verifier = verifier
        self.sampling = sampling
        self.explained_by = explained_by
        self.generator = generator
        self._rows: dict[int, np.ndarray] = {}  # node -> its row, as far as computed for the last tree

    @staticmethod
    def supports(session: Session, *, verifier: Verifier, sampling: SamplingConfig, on_cpu: bool) -> bool:
        """Return whether this judge supports the verifier; `on_cpu` means that all models are on the CPU."""
        return True

    @torch.inference_mode()
    def score(self, draft: DraftTree) -> None:
        """Run the target over the drafted tree."""
        plan = draft.plan
        draft.tokens = draft.tokens.cpu()
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
        """Determine the accepted path and the bonus token; raise FloatingPointError for non-finite logits."""
        if self.sampling.greedy:
            wanted = most_likely(self.logits, "target").tolist()
            return walk_greedily(draft.tree, draft.tokens.tolist(), wanted.__getitem__)
        uniform = iter(self._uniforms(draft).tolist()).__next__
        walk = WALKS.get(self.verifier.rule, walk_tree)
        return walk(_as_scored_tree(draft, self._row), rule=self.verifier.rule, uniform=uniform)

    def _uniforms(self, draft: DraftTree) -> torch.Tensor:
        """Draw a number in [0, 1) for each possible trial and for the bonus token, float64 [n]."""
        return torch.rand(draft.tree.size, generator=self.generator, dtype=torch.float64)

    @torch.inference_mode()
    def target_probs(self, draft: DraftTree) -> tuple[float, ...]:
        """Return the target's probability of each node's token given its parent, [n]; 1 for the root."""
        if draft.tree.size == 1:
            return (1.0,)
        probs = token_probabilities(
            self.logits, self.explained_by, draft.plan.inner, draft.plan.child_starts, draft.tokens[1:], "target"
        )
        return (1.0, *probs.tolist())

    @torch.inference_mode()
    def path_rows(self, draft: DraftTree, walk: Walk, most: int) -> tuple[NodeRows, ...]:
        """Return up to `most` of each model's most likely tokens at each node of the accepted path."""
        scored = _as_scored_tree(draft, self._row if self.explained_by is self.sampling else self._explained_row)
        return explain_path(
            scored,
            walk,
            verifier=None if self.sampling.greedy else self.verifier,
            most=most,
            sampling=self.explained_by,
            drawn=draft.find is None,
        )

    def _explained_row(self, node: int) -> np.ndarray:
        return distribution(self.logits[node], self.explained_by, "target")

    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        """Retain only the accepted path of the scored tree."""
        self.session.commit(draft.root_position, path)

    def wait(self) -> None:
        """Wait for the device to finish all queued work."""
        self.session.wait()


def _as_scored_tree(draft: DraftTree, target_row: Callable[[int], np.ndarray]) -> ScoredTree:
    return ScoredTree(draft.tree, draft.tokens.tolist(), target_row, draft.row, draft.first_row, draft.looked_up)
