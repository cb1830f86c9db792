"""Draft heads as a source of models. torch is imported only when a draft is requested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sequoia_core.models.model_sources import ModelFiles
from sequoia_core.models.pair_spec import PairSpec

if TYPE_CHECKING:
    import torch

    from .loading import DraftHeadFiles


def claim_draft_head(
    name: str | os.PathLike, _spec: PairSpec | None, _device: torch.device | None, target: ModelFiles | None
) -> DraftHeadFiles | None:
    """Claim a draft that reads its target's states (see `claim` for the arguments)."""
    if target is None:
        return None
    from .loading import find_draft_head

    return find_draft_head(name, target)
