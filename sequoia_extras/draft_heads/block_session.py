"""Sessions of heads that draft a block in one pass. B = tokens in a block, H = hidden size, q = tokens in a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sequoia_core.models.tree_cache import CacheSession

from .blocks import PEagleHead, block_masks
from .features import TargetFeatures

# Blocks further back are dropped; a measurement looks up those of the last few depths.
KEPT_ANCHORS = 64


class BlockSession(TargetFeatures, CacheSession):
    """One sequence in a head that drafts blocks.

    A pass over committed tokens computes a block below each token whose row is requested. Drafted tokens need no
    computation: their rows are those of the block below their last committed ancestor, at their depth. Tokens deeper
    than the block have its last row. The cache contains only what committed tokens or the target's states give.

    Args:
        model: a `HeadModel`.
    """

    def __init__(self, model: Any, capacity: int) -> None:
        settings = model.head.settings
        super().__init__(
            settings.layers,
            capacity,
            device=torch.device(model.device),
            dtype=model.dtype,
            logits_dtype=torch.float32,
            vocab_size=model.vocab_size,
        )
        assert settings.block is not None, "checked by `HeadModel.open`"
        self.model = model
        self.block = settings.block
        features = torch.zeros(capacity + 1, settings.hidden, dtype=model.dtype, device=self.device)
        self._init_features(model.head, features)
        self._written = 0  # number of positions whose states a DFlash head has read
        self._blocks: dict[int, Tensor] = {}  # anchor's position -> outputs [rows, H]
        self._only: tuple[int, Tensor] | None = None  # the anchor of a pass with a single block, and its logits

    def commit(self, start: int, slots: Sequence[int]) -> None:
        super().commit(start, slots)
        self._written = min(self._written, start)

    def _logits(self, ids: Tensor, positions: Tensor, tree_mask: Tensor, keep: int) -> Tensor:
        start = self.cache.length
        stop = start + len(ids)
        # The slots of committed tokens are their positions.
        committed = min(stop, self._last_known.value + 1)
        if committed > start:
            anchors = torch.arange(min(stop - keep, committed - 1), committed)
            outputs = self._read(ids[: committed - start], anchors)[:, self.block.first_row :]
            self._blocks = {anchor: rows for anchor, rows in self._blocks.items() if anchor > stop - KEPT_ANCHORS}
            self._blocks.update(zip(anchors.tolist(), outputs, strict=True))
            self._only = (committed - 1, self.model.target_logits(outputs[0])) if len(anchors) == 1 else None
        # Each token attends to all committed tokens up to its anchor.
        covered = tree_mask[-keep:, : max(0, tree_mask.shape[1] - stop + committed)]
        ancestors = committed - 1 - (covered != 0).sum(1)
        depths = (positions[-keep:] - ancestors).clamp(max=self.block.rows - 1)
        if self._only is not None and bool((ancestors == self._only[0]).all()):
            return self._only[1][depths.to(self.device)]
        rows = [self._blocks[anchor][depth] for anchor, depth in zip(ancestors.tolist(), depths.tolist(), strict=True)]
        return self.model.target_logits(torch.stack(rows))

    def _read(self, ids: Tensor, anchors: Tensor) -> Tensor:
        """Run the head over committed tokens, int64 [c], and blocks below some of them; return [anchors, B, H]."""
        head: Any = self.model.head
        start = self.cache.length
        is_p_eagle = isinstance(head, PEagleHead)
        blocks = torch.arange(int(is_p_eagle), self.block.size).repeat(len(anchors), 1)
        shape = blocks.shape
        depths = blocks.flatten()
        block_anchors = anchors.repeat_interleave(shape[1])
        block_ids = torch.where(depths == 0, ids[block_anchors - start], self.block.mask_token)
        if not is_p_eagle:
            new = self._features[self._written + 1 : self._last_known.value + 1]
            self._written = self._last_known.value
            return self._run(block_ids, block_anchors, depths, len(new), context=new).unflatten(0, shape)
        # The anchors are among the committed tokens, which are read with the target's states.
        count = len(ids)
        features = torch.cat([self._features[start : start + count], head.mask_feature().expand(len(depths), -1)])
        block_anchors = torch.cat([torch.arange(start, start + count), block_anchors])
        depths = torch.cat([torch.zeros_like(ids), depths])
        output = self._run(torch.cat([ids, block_ids]), block_anchors, depths, count, features=features)
        return torch.cat([output[anchors - start, None], output[count:].unflatten(0, shape)], 1)

    def _run(
        self,
        ids: Tensor,
        anchors: Tensor,
        depths: Tensor,
        new: int,
        *,
        features: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Run the head over tokens at some depths below their anchors, int64 [q]; return [q, H].

        Args:
            new: number of tokens whose keys and values are cached, which precede all others: those of the context, or
                else the first of the pass.
        """
        stop = self.cache.length + new if context is None else self._written
        embeddings = self.model.head.embed(ids.to(self.device))
        positions = anchors + depths
        if context is None:
            first = new
            visible = torch.arange(stop) <= anchors[:, None]
            # The first token has no feature, so no other token attends to it.
            visible[positions > 0, 0] = False
        else:
            first = 0
            visible = torch.arange(stop) < anchors[:, None]
            positions = torch.cat([torch.arange(stop - new, stop), positions])
        masks = block_masks(self.block, anchors, depths, visible, first)

        def write(layer: int, *given: Tensor) -> tuple[Tensor, ...]:
            self.cache.slots = torch.arange(stop - new, stop, device=self.device)
            try:
                cached = self.cache.write(layer, *(part[None, :, :new] for part in given))
            finally:
                self.cache.slots = None
            return tuple(
                torch.cat([old[0, :, :stop], part[:, new:]], 1) for old, part in zip(cached, given, strict=True)
            )

        return self.model.head(
            embeddings,
            embeddings if features is None else features,
            positions.to(self.device),
            [mask.to(embeddings) for mask in masks],
            write,
            context,
        )
