"""Drafters: each step, fill a tree with the draft's tokens and leave its keys and values in the draft's session.

`assemble` chooses one per run. A drafter owns its session and knows one tree; it never looks at the target.
Shapes: n = tree nodes, i = those that have children, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..design.tree import TokenTree
from ..models.protocol import Session, causal_tail
from .plan import TreePlan
from .sampling import SamplingConfig, check_probabilities, probabilities
from .verifiers import Fill


@dataclass(slots=True)
class Draft:
    """One step's tree and what is in it; the next `grow` of the same drafter may overwrite all of it.

    Attributes:
        tokens: int64 [n], root first.
        probs: float32 [n], what the draft gave each token after its parent; 1 for the root.
        rows: float32 [i, V], the rows that children were drawn from, in the order of `TreePlan.inner`.
    """

    tree: TokenTree
    tokens: torch.Tensor
    probs: torch.Tensor
    rows: torch.Tensor


class Drafter(Protocol):
    """What the loop needs of a drafter."""

    def grow(self, sequence: Sequence[int]) -> Draft:
        """Draft one tree below the last token of the committed sequence.

        Raises:
            FloatingPointError: when the draft model returns logits that are not finite.
        """
        ...

    def commit(self, path: tuple[int, ...]) -> None:
        """Keep of the last tree only the nodes of the accepted path."""
        ...

    def wait(self) -> None:
        """Return when the device has finished."""
        ...


class NoDrafter:
    """Drafts nothing: the tree is its root, and decoding is autoregressive."""

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree

    def grow(self, sequence: Sequence[int]) -> Draft:
        return Draft(self.tree, torch.tensor(sequence[-1:]), torch.ones(1), torch.empty(0, 0))

    def commit(self, path: tuple[int, ...]) -> None:
        pass

    def wait(self) -> None:
        pass


class LevelDrafter:
    """Drafts level by level, one pass of the draft for each, with any session.

    Args:
        session: holds the prompt but for its last token.
        fill: how children are drawn from a row.
        sampling: the draft's own.
        context: positions there are; nodes beyond get the last one, and are cut before they are committed.
    """

    def __init__(
        self,
        session: Session,
        plan: TreePlan,
        *,
        fill: Fill,
        sampling: SamplingConfig,
        context: int,
        generator: torch.Generator,
    ) -> None:
        self.session, self.plan, self.fill, self.sampling = session, plan, fill, sampling
        self.context, self.generator = context, generator
        self._rows: torch.Tensor | None = None  # allocated when the first row tells how wide it is

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> Draft:
        tree = self.plan.tree
        tokens = torch.empty(tree.size, dtype=torch.int64)
        probs = torch.ones(tree.size, dtype=torch.float32)
        known = tokens.numpy()  # the same memory: single entries cost less there
        known[0] = sequence[-1]
        rows, start = self._rows, 0
        self.root_slot = len(sequence) - 1
        for depth, level in enumerate(self.plan.levels):
            if depth == 0:
                unseen = sequence[self.session.length :]  # the last accepted leaf, if any, and the root
                ids, positions = torch.tensor(unseen), torch.arange(self.session.length, len(sequence))
                tail = causal_tail(len(unseen))
            else:
                ids = torch.from_numpy(known[level.nodes])
                positions = torch.full((len(ids),), min(self.root_slot + depth, self.context - 1))
                tail = level.tail
            logits = self.session.append(ids, positions, tail, keep=len(level.nodes))
            block = probabilities(logits, self.sampling)
            check_probabilities(block, "draft")
            drawn = self.fill(block, level.most_children, self.generator).take(level.places.to(block.device))
            tokens[level.children] = drawn
            probs[level.children] = block.take(level.rows.to(block.device) * block.shape[1] + drawn)
            if rows is None:
                rows = self._rows = torch.empty(
                    len(self.plan.inner), block.shape[1], dtype=torch.float32, device=block.device
                )
            rows[start : start + len(block)] = block
            start += len(block)
        return Draft(tree, tokens, probs, rows)

    def commit(self, path: tuple[int, ...]) -> None:
        self.session.commit(self.root_slot, self.plan.inner_path(path))

    def wait(self) -> None:
        self.session.wait()
