"""The profile of a pair of which only the sizes are given: measured with random weights, or modelled for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..design.devices import Device
    from ..design.model_shapes import ModelShape
    from ..design.profile import HardwareProfile

TargetShape = Annotated[
    str | None, typer.Option("--target-shape", help="Sizes of a target without weights: a name or a config.json.")
]
DraftShape = Annotated[str | None, typer.Option("--draft-shape", help="The same for its draft.")]
DeviceModel = Annotated[
    str | None,
    typer.Option("--device-model", help="Model the times of this device, such as a100-80g, or of this-machine."),
]
WORKING_BYTES = 2**30  # at most so much is read over and over to find the bandwidth


def profile_of_shapes(
    target_shape: str | None,
    draft_shape: str | None,
    *,
    device_model: str | None,
    dtype: str | None,
    offload: str | None,
    sizes: Sequence[int] | None,
    context: int,
    repeats: int,
    progress: Callable[[float, str], None] | None,
) -> HardwareProfile:
    """Return the profile of two shapes.

    Args:
        device_model: a device of the table or "this-machine", whose bounds are measured first: then the times are
            modelled. None makes random models in memory and measures them on the CPU.
        dtype: None models bfloat16, and measures in the dtype that models stored so load in here.
        sizes: tokens of target passes; None for the default of either way.

    Raises:
        ValueError: for only one shape, names that are not known, or a pair that does not fit.
    """
    from ..design.model_shapes import find_shape

    if not (target_shape and draft_shape):
        raise ValueError(f"--target-shape, --draft-shape: found {target_shape!r}, {draft_shape!r}, expected both")
    target, draft = find_shape(target_shape), find_shape(draft_shape)
    if device_model is None:
        return _measured(target, draft, dtype, offload, sizes, context, repeats, progress)
    from ..design.roofline import SIZES, modelled_profile

    return modelled_profile(
        target, draft, _device(device_model, target, dtype or "bfloat16"), dtype=dtype or "bfloat16", context=context,
        offload=offload, sizes=sizes or SIZES,
    )  # fmt: skip


def _device(name: str, target: ModelShape, dtype: str) -> Device:
    from ..design.devices import find_device

    if name != "this-machine":
        return find_device(name)
    from ..studies.measure_bounds import measure_bounds

    return measure_bounds(working_bytes=min(target.weight_bytes(dtype), WORKING_BYTES))


def _measured(target, draft, dtype, offload, sizes, context, repeats, progress) -> HardwareProfile:
    from ..models.default_dtype import dtype_for
    from ..models.random_models import random_pair
    from ..studies.measure_profile import DEFAULT_SIZES, checked_sizes, measure_profile

    sizes = checked_sizes(sizes or DEFAULT_SIZES)
    if offload is not None:
        raise ValueError(
            f"--offload: found {offload!r} for shapes without files, expected --device-model beside it, or --target "
            "and --draft written by scripts/make_random_model.py"
        )
    names = tuple(f"{shape.model or shape.name} (random weights)" for shape in (target, draft))
    config = target.to_config()
    dtype = dtype or dtype_for("bfloat16", config, gpu=False).dtype
    pair = random_pair(config, draft.to_config(), names=names, dtype=dtype)
    return measure_profile(
        target=pair.target, draft=pair.draft, sizes=sizes, context=context, repeats=repeats, progress=progress,
    )  # fmt: skip
