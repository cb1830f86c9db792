"""Measures this machine's peak bandwidth and arithmetic for the roofline, and the bound of passes by them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ..design.model_shapes import shape_of
from ..design.profile import HardwareProfile
from ..design.roofline import Device, pass_sec
from ..models.device import available_bytes, describe_device
from ..models.language_model import HuggingFaceModel
from ..models.protocol import TORCH_DTYPES, LanguageModel

THIS_MACHINE = "this-machine"
WORKING_BYTES = 256 * 2**20  # read at once: more than caches hold; a small model's weights may lie in them
PROBE_SEC = 0.1  # of the probes for one profile
SIDES = (128, 256, 512, 1024, 2048)  # of the square matrices that are multiplied


def measure_bounds(
    device: str | torch.device = "cpu",
    *,
    working_bytes: int = WORKING_BYTES,
    sides: Sequence[int] = SIDES,
    seconds: float = 0.4,
) -> Device:
    """Return this machine's bandwidth and arithmetic as measured, by the best of the repeats.

    A processor without products in bfloat16 or float16 can convert numbers to float32 as it reads them, so these dtypes
    get the rate of float32 where theirs is lower.

    Args:
        working_bytes: bytes that are read repeatedly; those of a model's weights where a cache holds them.
        sides: of the matrices, increasing; the fastest counts. Larger ones than take `seconds` are left out: some
            formats run a thousand times slower than others where the processor lacks them.
        seconds: that each of the probes repeats for, at least once.
    """
    if working_bytes < 64 or seconds < 0:
        raise ValueError(
            f"found {working_bytes} working bytes and {seconds} seconds, expected at least 64 bytes and 0 seconds"
        )
    on = torch.device(device)
    buffer = torch.ones(working_bytes // 4, device=on)
    bandwidth = buffer.numel() * 4 / _best_sec(buffer.sum, on, seconds)
    del buffer
    rates = {name: _product_rate(sides, dtype, on, seconds) for name, dtype in TORCH_DTYPES.items()}
    title = describe_device(on)
    measured = f"measured on {title} by PyTorch {torch.__version__}"
    return Device(
        name=THIS_MACHINE, title=title, bytes_per_sec=bandwidth, memory_bytes=_memory_bytes(on),
        operations_per_sec={name: max(rate, rates["float32"]) for name, rate in rates.items()},
        sources={
            "bytes_per_sec": f"{measured}: the sum of {working_bytes:,} bytes, best of repeats",
            "operations_per_sec": f"{measured}: the fastest of squares of {', '.join(map(str, sides))}",
            "memory_bytes": "as the system states what may still be taken",
        },
    )  # fmt: skip


def _memory_bytes(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def _product_rate(sides: Sequence[int], dtype: torch.dtype, device: torch.device, seconds: float) -> float:
    best = 0.0
    for side in sides:
        matrix = torch.full((side, side), 1 / side, dtype=dtype, device=device)
        taken = _best_sec(partial(torch.mm, matrix, matrix), device, seconds)
        best = max(best, 2 * side**3 / taken)
        if taken > seconds / 8:  # the next would take eight times as long
            break
    return best


def _best_sec(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the shortest time of some work, repeated for so many seconds after a warm-up."""
    _timed(work, device)
    taken = [_timed(work, device)]
    while sum(taken) < seconds:
        taken.append(_timed(work, device))
    return min(taken)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


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
