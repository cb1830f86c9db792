"""Model pass times with a roofline: the bound given by a device's peak rates, or an estimate for real `Software`."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sequoia_core.files.dtypes import dtype_bytes
from sequoia_core.planning.profile import HardwareProfile

from .model_shapes import ModelShape, shipped_table

PASS_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # tokens per target pass
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens per draft pass
RING_BUFFERS = 3  # number of buffers for streamed layers
LINKS = {"host": "host_bytes_per_sec", "disk": "disk_bytes_per_sec"}  # location of the weights -> field of `Device`

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Device(BaseModel):
    """Peak rates of a processor or GPU, as stated by its manufacturer.

    Args:
        name: short name for the command line.
        title: full name for display.
        bytes_per_sec: read bandwidth of the device memory.
        operations_per_sec: dense additions and multiplications per second, by dtype.
        memory_bytes: size of the device memory; None if unknown, which skips the check that a pair fits.
        layer_sec: overhead in seconds per layer, beyond reading and computing, in software tuned for the device.
        host_bytes_per_sec, disk_bytes_per_sec: transfer rates to the device from host memory and from disk; None if
            there is no such link.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    name: str
    title: str
    bytes_per_sec: Positive
    operations_per_sec: dict[str, Positive]
    memory_bytes: Positive | None = None
    layer_sec: Seconds = 0.0
    host_bytes_per_sec: Positive | None = None
    disk_bytes_per_sec: Positive | None = None
    sources: dict[str, str] = {}

    def rate(self, dtype: str) -> float:
        """Return the number of operations per second in a dtype."""
        if dtype not in self.operations_per_sec:
            raise ValueError(f"dtype: found {dtype[:40]!r}, expected one of {', '.join(self.operations_per_sec)}")
        return self.operations_per_sec[dtype]

    def link(self, offload: str) -> float:
        """Return the rate, in bytes per second, at which weights are transferred from "host" or "disk"."""
        if offload not in LINKS:
            raise ValueError(f"offload: found {offload[:40]!r}, expected one of {', '.join(LINKS)}")
        rate = getattr(self, LINKS[offload])
        if rate is None:
            raise ValueError(
                f"offload: found {offload!r}, expected a different location: {self.title} has no such link"
            )
        return rate


def find_device(name: str) -> Device:
    known = shipped_table("devices")
    if name.lower() not in known:
        raise ValueError(f"device: found {name[:40]!r}, expected one of {', '.join(known)}")
    return Device(name=name.lower(), **known[name.lower()])


class Software(BaseModel):
    """The fractions of a device's peak rates that software achieves, and its overhead.

    Args:
        traffic, arithmetic, streaming: achieved fractions of the memory bandwidth, arithmetic rate and link rate.
        hiding: exponent h of the overlap: r seconds of reading and a seconds of computing take (r^h + a^h)^(1/h)
            seconds. None means full overlap.
        layer_sec: overhead per layer in seconds; None uses the device's value.
        stored: bytes per layer as stored ÷ bytes in the compute dtype, such as 0.26 for 4 bits with one scale per 128
            weights. The check that models fit still assumes the compute dtype.
        alike: see `ModelShape.experts_read`.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    name: str
    traffic: Positive = 1.0
    arithmetic: Positive = 1.0
    streaming: Positive = 1.0
    hiding: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    layer_sec: Seconds | None = None
    stored: Positive = 1.0
    alike: Annotated[float, Field(ge=0, le=1)] = 0.0
    source: str = ""


BOUND = Software(name="bound", layer_sec=0.0, source="the device's peaks")
TUNED = Software(
    name="tuned", traffic=0.69, arithmetic=0.7, streaming=0.76, hiding=2.0,
    source="traffic: gpt-fast, Llama-2-7B in bfloat16 on an A100 80 GB, 104.9 tokens/s (its README); streaming: "
    "DeepSpeed-Zero-Inference, Llama-3-70B on an L40, 5.7 s per token (Sequoia paper); arithmetic: assumed; hiding: as "
    "found for compiled passes on processors",
)  # fmt: skip


def pass_sec(
    shape: ModelShape,
    tokens: int | Sequence[int] | np.ndarray,
    device: Device,
    *,
    dtype: str = "bfloat16",
    context: int = 128,
    software: Software = BOUND,
    offload: str | None = None,
) -> np.ndarray:
    """Return the duration in seconds of a pass over `tokens` tokens (any shape) after a context, float64.

    Layers offloaded to "host" or "disk" are transferred while earlier layers compute, so the longer time counts.
    """
    tokens = np.asarray(tokens, dtype=np.float64)
    visible = context + tokens
    layers = shape.num_hidden_layers * shape.layer_parameters
    unused_experts = shape.num_experts - shape.experts_read(tokens, software.alike)
    unused = shape.num_hidden_layers * shape.expert_parameters * unused_experts
    weights = shape.read_parameters - (1 - software.stored) * layers - software.stored * unused
    read = weights * dtype_bytes(dtype) + shape.kv_bytes(dtype) * visible
    reading = read / (device.bytes_per_sec * software.traffic)
    computing = tokens * shape.operations_per_token(visible) / (device.rate(dtype) * software.arithmetic)
    layer_sec = device.layer_sec if software.layer_sec is None else software.layer_sec
    seconds = (
        np.linalg.norm([reading, computing], software.hiding or np.inf, axis=0) + shape.num_hidden_layers * layer_sec
    )
    if offload is None:
        return seconds
    return np.maximum(seconds, shape.num_hidden_layers * layer_read_sec(shape, device, dtype, software, offload))


def layer_read_sec(shape: ModelShape, device: Device, dtype: str, software: Software, offload: str) -> float:
    return shape.layer_parameters * dtype_bytes(dtype) * software.stored / (device.link(offload) * software.streaming)


def modelled_profile(
    target: ModelShape,
    draft: ModelShape,
    device: Device,
    *,
    dtype: str = "bfloat16",
    context: int = 128,
    software: Software = TUNED,
    draft_software: Software | None = None,
    offload: str | None = None,
    sizes: Sequence[int] = PASS_SIZES,
) -> HardwareProfile:
    """Model the profile of a pair on a device, and record the inputs in its `meta`.

    Args:
        draft_software: software that runs the draft; None uses the target's software.
        offload: location from which the target's layers are streamed, "host" or "disk"; None keeps them in device
            memory. The draft is always in device memory.
    """
    draft_software = software if draft_software is None else draft_software
    timed = np.array(sorted({1, *sizes}))
    needed = memory_bytes(target, draft, dtype=dtype, tokens=context + int(timed[-1]), offload=offload)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        remedy = "use a smaller pair or dtype, or offload the target" if offload is None else "use a smaller pair"
        raise ValueError(
            f"{target.name} ← {draft.name}: {needed / 1e9:,.1f} GB are needed in {dtype}, but {device.title} has only "
            f"{device.memory_bytes / 1e9:,.0f} GB: {remedy}"
        )
    seconds = partial(pass_sec, device=device, dtype=dtype, context=context)
    drafting = seconds(draft, DRAFT_WIDTHS, software=draft_software)
    meta = {
        "modelled": True,
        "target": target.model or target.name,
        "draft": draft.model or draft.name,
        "target_shape": target.name,
        "draft_shape": draft.name,
        "device_model": device.model_dump(exclude={"sources"}),
        "software": software.model_dump(),
        "draft_software": draft_software.model_dump(),
        "offload": offload,
    }
    if offload is not None:
        read_sec = layer_read_sec(target, device, dtype, software, offload)
        meta["streaming"] = {"layers": target.num_hidden_layers, "buffers": RING_BUFFERS, "layer_read_sec": read_sec}
    return HardwareProfile(
        sizes=timed,
        verify_sec=seconds(target, timed, software=software, offload=offload),
        draft_sec=float(drafting[0]),
        device=device.title,
        dtype=dtype,
        context=context,
        draft_widths=np.array(DRAFT_WIDTHS),
        draft_width_sec=drafting,
        meta=meta,
    )


def memory_bytes(target: ModelShape, draft: ModelShape, *, dtype: str, tokens: int, offload: str | None) -> int:
    """Return the device memory that a pair needs, in bytes, for resident weights and both KV caches."""
    kept = target.parameters if offload is None else target.resident_parameters + RING_BUFFERS * target.layer_parameters
    return dtype_bytes(dtype) * (kept + draft.parameters) + tokens * (target.kv_bytes(dtype) + draft.kv_bytes(dtype))


def tree_bytes(target: ModelShape, draft: ModelShape, *, dtype: str, nodes: int) -> int:
    """Return the additional memory for a tree, in bytes: slots in both KV caches, the mask, and float32 logits."""
    slots = target.kv_bytes(dtype) + draft.kv_bytes(dtype)
    return (
        nodes * (slots + dtype_bytes("float32") * (target.vocab_size + draft.vocab_size))
        + dtype_bytes("float32") * nodes**2
    )


def largest_tree(target: ModelShape, draft: ModelShape, *, dtype: str, free: int) -> int:
    """Return the largest number of nodes for which `tree_bytes` is at most `free` bytes."""
    number = dtype_bytes("float32")
    each = tree_bytes(target, draft, dtype=dtype, nodes=1) - number
    return (math.isqrt(each**2 + 4 * number * free) - each) // (2 * number)
