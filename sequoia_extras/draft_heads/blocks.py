"""Heads that draft a block of tokens in one pass: DFlash and P-EAGLE. n = number of tokens, H = hidden size."""

from typing import Any

import torch
from torch import Tensor, nn

from .eagle3 import Eagle3Head, HeadLayer, HeadSettings


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
