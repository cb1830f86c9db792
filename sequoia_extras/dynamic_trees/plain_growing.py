"""Grows trees in Python by an expansion policy; works with every session."""

from collections.abc import Sequence

import numpy as np
import torch

from sequoia_core.decoding.drafting import DraftRun, first_pass_inputs
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.sampling import check_probabilities, draft_probabilities, take_most_likely

from .expansion import Nodes, TreeBounds
from .top_k_expansion import TopKExpansion


class DraftRows:
    """The draft's probabilities after a frontier of w nodes (implements `expansion.FrontierRows`).

    Args:
        block: float32 [w, V], one distribution per row.
        first: float32 [w, V], distributions that first children are drawn from; None to draw them from `block`.
    """

    def __init__(self, block: torch.Tensor, run: DraftRun, first: torch.Tensor | None = None) -> None:
        self.block = block
        self.run = run
        self.first = first

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._with_probs(take_most_likely(self.block, k))

    def draw(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        if self.first is not None:
            for row, tokens in zip(self.first, seen, strict=False):
                row[torch.from_numpy(tokens).to(row.device)] = 0.0
        k = min(k, self.block.shape[1])
        return self._with_probs(self.run.draft_sampling(self.block, k, self.run.generator, self.first))

    def probabilities(self, row: int, tokens: np.ndarray) -> np.ndarray:
        return self.block[row, torch.from_numpy(tokens).to(self.block.device)].double().cpu().numpy()

    def _with_probs(self, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return tokens.cpu().numpy(), self.block.gather(1, tokens).double().cpu().numpy()


class PlainGrower:
    """Grows one tree after another; `bounds` limit all trees of a run."""

    def __init__(self, run: DraftRun, bounds: TreeBounds) -> None:
        self.run = run
        self.bounds = bounds
        max_read = 0 if run.session is None else bounds.max_read
        self._mask = torch.full((max_read, max_read), -torch.inf)  # attention mask over the nodes read in one step
        self.rows: torch.Tensor | None = None  # allocated on first use, when V is known
        self.first_rows: torch.Tensor | None = None

    @staticmethod
    def supports(expansion: TopKExpansion) -> bool:
        return True

    def grow(self, expansion: TopKExpansion, sequence: Sequence[int]) -> tuple[TreePlan, Nodes, list[int]]:
        """Return a tree below the sequence's last token, its nodes, and the number of nodes that each pass read."""
        nodes = expansion.start(sequence[-1])
        widths: list[int] = []
        for _ in range(self.bounds.max_depth):
            frontier = expansion.choose_frontier(nodes)
            if len(frontier) == 0:
                break
            block, first = self._read(nodes, frontier, sum(widths), sequence)
            widths.append(len(frontier))
            nodes = expansion.expand(nodes, frontier, DraftRows(block, self.run, first))
        tree, nodes = expansion.prune(nodes).as_tree()
        return TreePlan(tree), nodes, widths

    def _read(
        self, nodes: Nodes, frontier: np.ndarray, read: int, sequence: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the draft over a frontier after it has read `read` nodes; return what `draft_probabilities` returns."""
        session = self.run.session
        assert session is not None, "without a draft, the frontier is always empty"
        stop = read + len(frontier)
        nodes.cache_positions[frontier] = np.arange(read, stop)
        if read == 0:
            request = first_pass_inputs(session, sequence)
            self._mask[0] = -torch.inf
            self._mask[0, 0] = 0.0
        else:
            for slot, parent in enumerate(nodes.cache_positions[nodes.parents[frontier]].tolist(), start=read):
                # The parent may be an earlier node of this pass.
                self._mask[slot] = self._mask[parent]
                self._mask[slot, slot] = 0.0
            positions = torch.from_numpy(len(sequence) - 1 + nodes.depths[frontier])
            request = torch.from_numpy(nodes.tokens[frontier]), positions, self._mask[read:stop, :stop]
        block, first = draft_probabilities(session.forward(*request, keep=len(frontier)), self.run.sampling)
        check_probabilities(block, "draft")
        if self.rows is None:
            self.rows = block.new_empty(self.bounds.max_read, block.shape[1])
            self.first_rows = None if first is None else torch.empty_like(self.rows)
        self.rows[read:stop] = block
        if first is None or self.first_rows is None:
            return block, None
        self.first_rows[read:stop] = first
        return block, self.first_rows[read:stop]
