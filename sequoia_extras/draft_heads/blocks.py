"""Heads that draft a block of tokens in one pass: DFlash and P-EAGLE. n = number of tokens, H = hidden size."""

from typing import Any

import torch
from torch import Tensor, nn

from .eagle3 import BlockSettings, Eagle3Head, HeadLayer, HeadSettings


class DFlashHead(Eagle3Head):
    """A DFlash head: blocks attend to the target's projected states, which every layer reads as a context."""

    def __init__(self, settings: HeadSettings, *ends: Tensor | None) -> None:
        super().__init__(settings, *ends)
        self.layers = nn.ModuleList([HeadLayer(settings, first=False) for _ in range(settings.layers)])
        self.hidden_norm = nn.RMSNorm(settings.hidden, settings.eps)

    def project(self, states: Tensor) -> Tensor:
        return self.hidden_norm(super().project(states))


class PEagleHead(Eagle3Head):
    """A P-EAGLE head: an EAGLE-3 head with learned states for the masks of a block."""

    def __init__(self, settings: HeadSettings, *ends: Tensor | None) -> None:
        super().__init__(settings, *ends)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, settings.states * settings.target_hidden))

    def mask_feature(self) -> Tensor:
        """Return the feature of every mask, [1, H]."""
        return self.project(self.mask_hidden[0])


def head_class(settings: HeadSettings) -> Any:
    """Return the class of a head with these settings."""
    if settings.block is None:
        return Eagle3Head
    return PEagleHead if settings.form.startswith("P-EAGLE") else DFlashHead


def block_masks(block: BlockSettings, anchors: Tensor, depths: Tensor, visible: Tensor, first: int = 0) -> list[Tensor]:
    """Return each layer's additive mask for tokens of several blocks, float32 [q, c + q - first].

    Args:
        anchors, depths: int64 [q], positions of the tokens' anchors, and depths below these.
        visible: bool [q, c], the context that each token attends to without a window.
        first: index of the first token that belongs to a block; those before are in the context.
    """
    same_block = anchors[:, None] == anchors[first:]
    masks: dict[tuple[bool, int | None], Tensor] = {}
    kinds = list(zip(block.causal, block.windows, strict=True))
    for causal, window in set(kinds):
        positions = torch.arange(visible.shape[1], device=anchors.device)
        near = visible if window is None else visible & (positions >= anchors[:, None] - window)
        inside = same_block & (depths[:, None] >= depths[first:]) if causal else same_block
        hidden = ~torch.cat([near, inside], 1)
        masks[causal, window] = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)
    return [masks[kind] for kind in kinds]


def read_blocks(head: DFlashHead, ids: Tensor, context: Tensor, anchors: Tensor, shift: int = 0) -> Tensor:
    """Return a DFlash head's outputs for blocks below some tokens of a text without a cache, [.., n, B, H].

    Args:
        ids: int64 [.., L].
        context: [.., L, H], the projected states of these tokens.
        anchors: int64 [n], positions in the text.
        shift: added to the blocks' positions.
    """
    block = head.settings.block
    assert block is not None, "DFlash heads have blocks"
    where = anchors.repeat_interleave(block.size)
    depths = torch.arange(block.size, device=anchors.device).repeat(len(anchors))
    embeddings = head.embed(ids[..., where].masked_fill(depths > 0, block.mask_token))
    places = torch.arange(ids.shape[-1], device=anchors.device)
    masks = [mask.to(embeddings) for mask in block_masks(block, where, depths, places < where[:, None])]
    output = head(embeddings, embeddings, torch.cat([places, where + depths + shift]), masks, None, context)
    return output.unflatten(-2, (len(anchors), block.size))
