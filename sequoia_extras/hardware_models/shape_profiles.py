"""Model a profile for two model shapes on a device from the shipped table, for the `profile` command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sequoia_core.planning.profile import HardwareProfile

from .model_shapes import find_shape
from .roofline import PASS_SIZES, find_device, modelled_profile

if TYPE_CHECKING:
    from sequoia_core.models.pair_spec import PairSpec


def device_profile(
    target: str | None,
    draft: str | None,
    device: str | None,
    spec: PairSpec,
    *,
    sizes: Sequence[int] | None,
    context: int,
) -> HardwareProfile:
    """Model the pass times of a target shape and a draft shape on a device."""
    if not (target and draft and device):
        options = "--target-shape, --draft-shape, --device-model"
        raise ValueError(f"{options}: found {target!r}, {draft!r} and {device!r}, expected all three options")
    return modelled_profile(
        find_shape(target),
        find_shape(draft),
        find_device(device),
        dtype=str(spec.dtype or "bfloat16"),
        context=context,
        offload=spec.offload,
        sizes=sizes or PASS_SIZES,
    )
