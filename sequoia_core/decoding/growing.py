"""The drafter of trees that take shape while they are drafted: reads a wave of nodes, asks what comes next, goes on.

A `Shaper` (`design.shaping`) decides; this runs the draft's passes and leaves the tree as every judge expects it.
Shapes: n = tree nodes, w = nodes of one pass, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..design.shaping import Nodes, ShapeBounds, Shaper
from ..models.protocol import causal_tail
from .drafting import Draft, LevelDrafter
from .plan import plan_of
from .sampling import check_probabilities, probabilities, take_most_likely
from .verifiers import Fill


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTree(ShapeBounds):
    """What the policies of such trees have in common: they are their own bounds, and no step's tree is fixed."""

    beam: int = 16
    branch: int = 16
    fixed = None

    @property
    def max_inner(self) -> int:
        return self.most_read

    @property
    def max_children(self) -> int:
        return self.branch


class DraftRows:
    """The draft's probabilities after a wave of nodes, as `design.shaping.Rows`.

    Args:
        block: float32 [w, V].
        fill: how the verifier wants children drawn.
    """

    def __init__(self, block: torch.Tensor, fill: Fill, generator: torch.Generator) -> None:
        self.block, self.fill, self.generator = block, fill, generator

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._with_probs(take_most_likely(self.block, k))

    def drawn(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._with_probs(self.fill(self.block, k, self.generator))

    def _with_probs(self, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return tokens.cpu().numpy(), self.block.gather(1, tokens).double().cpu().numpy()


class GrowingDrafter(LevelDrafter):
    """Drafts with any session what its shaper decides; a policy's drafter says which shaper a step has.

    The draft may read nodes that are not kept, and keep nodes that it has read without giving them children, so each
    node's place in the cache is its own record (`Nodes.slots`).
    """

    def __init__(self, session, policy, **options) -> None:
        super().__init__(session, policy, **options)
        most = policy.max_inner
        self._mask = torch.full((most, most), -torch.inf)  # over the slots of one step; each sees its ancestors
        self._slots: np.ndarray = np.zeros(0, np.int64)  # of the tree last drafted, node by node

    def shaper(self, context: int) -> Shaper:
        """Return what shapes the next tree; `context` tokens are committed."""
        raise NotImplementedError

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> Draft:
        shaper, nodes, read = self.shaper(len(sequence)), Nodes.root(sequence[-1]), 0
        self.widths: list[int] = []
        for _ in range(self.policy.max_depth):
            wave = shaper.wave(nodes)
            if len(wave) == 0:
                break
            block = self._read(nodes, wave, read, sequence)
            read += len(wave)
            self.widths.append(len(wave))
            nodes = shaper.extended(nodes, wave, DraftRows(block, self.fill, self.generator))
        nodes = shaper.kept(nodes)
        self.hoped = float(nodes.scores.sum())  # tokens that the step is expected to commit
        tree, order = nodes.as_tree()
        plan, self._slots = plan_of(tree), nodes.slots[order]
        rows = torch.empty(0, 0) if self._rows is None else self._rows
        places = self._slots[plan.inner]
        if not np.array_equal(places, np.arange(len(places))):
            rows = rows[torch.from_numpy(places).to(rows.device)]
        tokens, probs = torch.from_numpy(nodes.tokens[order]), torch.from_numpy(nodes.probs[order]).float()
        return Draft(plan, len(sequence) - 1, tokens, probs, rows)

    def _read(self, nodes: Nodes, wave: np.ndarray, read: int, sequence: Sequence[int]) -> torch.Tensor:
        """Run the draft over a wave, after `read` nodes of this step; return its rows, float32 [w, V]."""
        stop = read + len(wave)
        nodes.slots[wave] = np.arange(read, stop)
        if read == 0:  # the root, and what was committed since the draft's last pass
            unseen = sequence[self.session.length :]
            ids, positions = torch.tensor(unseen), torch.arange(self.session.length, len(sequence))
            tail = causal_tail(len(unseen))
            self._mask[0] = -torch.inf
            self._mask[0, 0] = 0.0
        else:
            ids = torch.from_numpy(nodes.tokens[wave])
            last = len(sequence) - 1 + nodes.depths[wave]
            positions = torch.from_numpy(np.minimum(last, self.context - 1))
            own = self._mask[read:stop]
            own.copy_(self._mask[torch.from_numpy(nodes.slots[nodes.parents[wave]])])
            own[:, read:].fill_diagonal_(0.0)
            tail = own[:, :stop]
        logits = self.session.append(ids, positions, tail, keep=len(wave))
        block = probabilities(logits, self.sampling)
        check_probabilities(block, "draft")
        if self._rows is None:
            self._rows = torch.empty(self.policy.max_inner, block.shape[1], dtype=torch.float32, device=block.device)
        self._rows[read:stop] = block
        return block

    def commit(self, draft: Draft, path: tuple[int, ...]) -> None:
        places = self._slots[list(path)]
        if places[0] >= 0:  # else nothing was read: the next tree's first pass reads what is missing
            self.session.commit(draft.root_slot, places[places >= 0].tolist())
