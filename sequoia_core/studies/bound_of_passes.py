"""The least time that target passes can take on this machine (their roofline bound), kept with the profile."""

from __future__ import annotations

from dataclasses import replace

from ..design.model_shapes import shape_of
from ..design.profile import HardwareProfile
from ..design.roofline import pass_sec
from ..models.language_model import HuggingFaceModel
from ..models.protocol import LanguageModel
from .measure_bounds import WORKING_BYTES, measure_bounds

PROBE_SEC = 0.1


def with_bound(profile: HardwareProfile, target: LanguageModel) -> HardwareProfile:
    """Measure this machine's bandwidth and arithmetic, and add to a profile the bound of its passes.

    Takes about two seconds. Bandwidth is that of reading as many bytes as the weights have: a cache may hold them.

    Returns:
        The profile with `bound_sec` in its meta, seconds for each size, and `bound_device`; unchanged where the model
        is of a family whose sizes are not known.
    """
    if not isinstance(target, HuggingFaceModel):  # a GGUF file mixes formats in its tensors
        return profile
    try:
        shape = shape_of(target.model.config.to_dict(), target.name)
        working = min(shape.weight_bytes(profile.dtype), WORKING_BYTES)
        device = measure_bounds(target.device, working_bytes=working, seconds=PROBE_SEC)
        bound = pass_sec(shape, profile.sizes, device, dtype=profile.dtype, context=profile.context)
    except ValueError:
        return profile
    return replace(
        profile,
        meta=profile.meta | {"bound_sec": bound.tolist(), "bound_device": device.model_dump(exclude={"sources"})},
    )
