"""How long a pass takes on a device by the roofline model; a bound at the device's peaks, or scaled by `Software`."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..files.dtypes import bytes_of
from .model_shapes import ModelShape, shipped_table
from .profile import HardwareProfile

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # tokens of target passes
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens of draft passes
RING_BUFFERS = 3  # buffers for streamed layers
LINKS = {"host": "host_bytes_per_sec", "disk": "disk_bytes_per_sec"}  # where offloaded weights lie -> how they come

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Device(BaseModel):
    """What a processor or GPU can do at most: peaks as its maker states them.

    Args:
        name: short, as on a command line; title: as people call it.
        bytes_per_sec: of its own memory, read.
        operations_per_sec: additions and multiplications per second, dense, by dtype.
        memory_bytes: of its own memory; None where it is unknown, and then everything fits.
        layer_sec: overhead of a layer beside reading and computing, in software that is tuned for the device.
        host_bytes_per_sec, disk_bytes_per_sec: into the device, from the host's memory and from a disk; None where
            there is no such way.
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
        """Return the operations per second in a dtype."""
        if dtype not in self.operations_per_sec:
            raise ValueError(f"dtype: found {dtype[:40]!r}, expected one of {', '.join(self.operations_per_sec)}")
        return self.operations_per_sec[dtype]

    def link(self, offload: str) -> float:
        """Return the bytes per second at which weights come from "host" or "disk"."""
        if offload not in LINKS:
            raise ValueError(f"offload: found {offload[:40]!r}, expected one of {', '.join(LINKS)}")
        rate = getattr(self, LINKS[offload])
        if rate is None:
            raise ValueError(f"offload: found {offload!r}, expected another place: {self.title} has no such link")
        return rate


def find_device(name: str) -> Device:
    known = shipped_table("devices")
    if name.lower() not in known:
        raise ValueError(f"device: found {name[:40]!r}, expected one of {', '.join(known)}")
    return Device(name=name.lower(), **known[name.lower()])


class Software(BaseModel):
    """How near software comes to a device's peaks, and its overhead beside reading and computing.

    Args:
        traffic, arithmetic, streaming: shares of the memory's bandwidth, the arithmetic and the link.
        hiding: h: reading for r seconds and computing for a takes (r^h + a^h)^(1/h) together. None: full overlap.
        layer_sec: seconds for each layer beside both; None takes the device's own.
        stored: bytes of a layer as it is kept and read ÷ bytes in the dtype of the arithmetic: 0.26 for 4 bits with a
            scale for each 128 weights. Whether models fit is still asked in the dtype.
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
    """Return the seconds of a pass over n tokens (any shape) behind a context, float64.

    Layers offloaded to "host" or "disk" stream in while those before them compute, so the longer of the two counts.
    """
    tokens = np.asarray(tokens, dtype=np.float64)
    visible = context + tokens
    layers = shape.num_hidden_layers * shape.layer_parameters
    resting = shape.num_experts - shape.experts_read(tokens, software.alike)
    resting = shape.num_hidden_layers * shape.expert_parameters * resting
    weights = shape.read_parameters - (1 - software.stored) * layers - software.stored * resting
    read = weights * bytes_of(dtype) + shape.kv_bytes(dtype) * visible
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
    return shape.layer_parameters * bytes_of(dtype) * software.stored / (device.link(offload) * software.streaming)


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
    sizes: Sequence[int] = SIZES,
) -> HardwareProfile:
    """Return the profile of a pair on a device as modelled; its `meta` says so and keeps what it was made from.

    Args:
        draft_software: None for that of the target.
        offload: where the target's layers are streamed from; the draft always lies on the device.
    """
    draft_software = software if draft_software is None else draft_software
    timed = np.array(sorted({1, *sizes}))
    needed = memory_bytes(target, draft, dtype=dtype, tokens=context + int(timed[-1]), offload=offload)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        remedy = "a smaller pair or dtype, or the target offloaded" if offload is None else "a smaller pair"
        raise ValueError(
            f"{target.name} ← {draft.name}: found {needed / 1e9:,.1f} GB needed in {dtype}, expected at most the "
            f"{device.memory_bytes / 1e9:,.0f} GB of {device.title} ({remedy})"
        )
    seconds = partial(pass_sec, device=device, dtype=dtype, context=context)
    drafting = seconds(draft, WIDTHS, software=draft_software)
    meta = {
        "modelled": True, "target": target.model or target.name, "draft": draft.model or draft.name,
        "target_shape": target.name, "draft_shape": draft.name, "device_model": device.model_dump(exclude={"sources"}),
        "software": software.model_dump(), "draft_software": draft_software.model_dump(), "offload": offload,
    }  # fmt: skip
    if offload is not None:
        read_sec = layer_read_sec(target, device, dtype, software, offload)
        meta["streaming"] = {"layers": target.num_hidden_layers, "buffers": RING_BUFFERS, "layer_read_sec": read_sec}
    return HardwareProfile(
        sizes=timed, verify_sec=seconds(target, timed, software=software, offload=offload),
        draft_sec=float(drafting[0]), device=device.title, dtype=dtype, context=context,
        draft_widths=np.array(WIDTHS), draft_width_sec=drafting, meta=meta,
    )  # fmt: skip


def memory_bytes(target: ModelShape, draft: ModelShape, *, dtype: str, tokens: int, offload: str | None) -> int:
    """Return the bytes that a pair needs on the device: weights, or what streaming keeps of them, and both caches."""
    kept = target.parameters if offload is None else target.resident_parameters + RING_BUFFERS * target.layer_parameters
    return bytes_of(dtype) * (kept + draft.parameters) + tokens * (target.kv_bytes(dtype) + draft.kv_bytes(dtype))


def tree_bytes(target: ModelShape, draft: ModelShape, *, dtype: str, nodes: int) -> int:
    """Return the bytes that a tree's nodes take beside the text: both caches' slots, mask and rows (float32)."""
    slots = target.kv_bytes(dtype) + draft.kv_bytes(dtype)
    return (
        nodes * (slots + bytes_of("float32") * (target.vocab_size + draft.vocab_size)) + bytes_of("float32") * nodes**2
    )


def largest_tree(target: ModelShape, draft: ModelShape, *, dtype: str, free: int) -> int:
    """Return the most nodes whose `tree_bytes` fit into `free` bytes."""
    number = bytes_of("float32")
    each = tree_bytes(target, draft, dtype=dtype, nodes=1) - number
    return (math.isqrt(each**2 + 4 * number * free) - each) // (2 * number)
