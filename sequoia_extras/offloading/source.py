"""The model source for targets with streamed decoder layers. Imports torch only once such a target is requested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sequoia_core.models.model_sources import ModelFiles
from sequoia_core.models.pair_spec import PairSpec

if TYPE_CHECKING:
    import torch

    from .loading import StreamedFolder


def streamed_target(
    name: str | os.PathLike, spec: PairSpec | None, device: torch.device | None, _target: ModelFiles | None
) -> StreamedFolder | None:
    """Return the target's folder if the pair requests offloading, otherwise None; see `claim` for the arguments."""
    if spec is None or spec.offload is None:
        return None
    from .loading import StreamedFolder, check_tier

    assert device is not None, "a pair has a device"
    check_tier(spec.offload, device)
    return StreamedFolder(name)
