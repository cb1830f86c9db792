"""Grows trees with any session, asking an expansion policy in Python."""

from collections.abc import Sequence

import numpy as np
import torch

from ..drafting import DraftRun, unseen_tokens
from ..plan import TreePlan
from ..sampling import check_probabilities, draft_probabilities, take_most_likely
from .expansion import Nodes, TreeBounds
from .top_k_expansion import TopKExpansion


class DraftRows:
    """The draft's probabilities after a frontier of w nodes, as `expansion.Rows`.

    Args:
        block: float32 [w, V].
        first: as `block`, what the first of them are drawn from; None for `block`.
    """

    def __init__(self, block: torch.Tensor, run: DraftRun, first: torch.Tensor | None = None) -> None:
        self.block, self.run, self.first = block, run, first

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._with_probs(take_most_likely(self.block, k))

    def drawn(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        if self.first is not None:
            for row, tokens in zip(self.first, seen, strict=False):
                row[torch.from_numpy(tokens).to(row.device)] = 0.0
        k = min(k, self.block.shape[1])
        return self._with_probs(self.run.draft_sampling(self.block, k, self.run.generator, self.first))

    def given(self, row: int, tokens: np.ndarray) -> np.ndarray:
        return self.block[row, torch.from_numpy(tokens).to(self.block.device)].double().cpu().numpy()

    def _with_probs(self, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return tokens.cpu().numpy(), self.block.gather(1, tokens).double().cpu().numpy()


class PlainGrower:
    """Grows one tree after the other within the bounds of all trees of a run."""

    def __init__(self, run: DraftRun, bounds: TreeBounds) -> None:
        self.run, self.bounds = run, bounds
        most = 0 if run.session is None else bounds.most_read
        self._mask = torch.full((most, most), -torch.inf)  # over the nodes read in one step; each sees its ancestors
        self.rows: torch.Tensor | None = None  # allocated when the first row tells how long it is
        self.first_rows: torch.Tensor | None = None

    @staticmethod
    def supports(expansion: TopKExpansion) -> bool:
        return True

    def grow(self, expansion: TopKExpansion, sequence: Sequence[int]) -> tuple[TreePlan, Nodes, list[int]]:
        """Return a tree below the last token of the sequence, its nodes, and how many nodes each pass read."""
        nodes = expansion.start(sequence[-1])
        widths: list[int] = []
        for _ in range(self.bounds.max_depth):
            frontier = expansion.frontier(nodes)
            if len(frontier) == 0:
                break
            block, first = self._read(nodes, frontier, sum(widths), sequence)
            widths.append(len(frontier))
            nodes = expansion.extended(nodes, frontier, DraftRows(block, self.run, first))
        tree, nodes = expansion.kept(nodes).as_tree()
        return TreePlan(tree), nodes, widths

    def _read(
        self, nodes: Nodes, frontier: np.ndarray, read: int, sequence: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the draft over a frontier, after `read` nodes of this step; return its rows as `draft_probabilities`."""
        session = self.run.session
        assert session is not None, "nothing is read where trees are looked up alone"
        stop = read + len(frontier)
        nodes.cache_positions[frontier] = np.arange(read, stop)
        if read == 0:
            request = unseen_tokens(session, sequence)
            self._mask[0] = -torch.inf
            self._mask[0, 0] = 0.0
        else:
            own = self._mask[read:stop]
            for slot, above in enumerate(nodes.cache_positions[nodes.parents[frontier]].tolist(), start=read):
                self._mask[slot] = self._mask[above]  # which may be of this pass, before its children
                self._mask[slot, slot] = 0.0
            positions = torch.from_numpy(len(sequence) - 1 + nodes.depths[frontier])
            request = torch.from_numpy(nodes.tokens[frontier]), positions, own[:, :stop]
        block, first = draft_probabilities(session.forward(*request, keep=len(frontier)), self.run.sampling)
        check_probabilities(block, "draft")
        if self.rows is None:
            self.rows = block.new_empty(self.bounds.most_read, block.shape[1])
            self.first_rows = None if first is None else torch.empty_like(self.rows)
        self.rows[read:stop] = block
        if first is None or self.first_rows is None:
            return block, None
        self.first_rows[read:stop] = first
        return block, self.first_rows[read:stop]
