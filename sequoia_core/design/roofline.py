"""How long a pass takes on a device that nobody has here: the roofline, and models fitted to a few known times.

A pass reads the weights once and computes with each token. The *bound* is the longer of the two at the device's peaks:
nothing is faster. A *model* scales both by what software reaches (`Software`) and adds what it spends beside them.
Neither is a measurement, and profiles made here say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from .devices import Device
from .model_shapes import ModelShape, bytes_of
from .profile import HardwareProfile

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # tokens of target passes
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens of draft passes
RING = 3  # buffers for streamed layers
MOST_TOKENS = 4096  # among which `turning_point` looks


@dataclass(frozen=True, slots=True)
class Software:
    """How near software comes to a device's peaks, and what it spends beside reading and computing.

    Args:
        traffic, arithmetic, streaming: shares, above 0, of the memory's bandwidth, the arithmetic and the link.
        hiding: h, at least 1: reading for r seconds and computing for a takes (r^h + a^h)^(1/h) together. Infinite:
            the longer hides the other wholly. 1: one after the other.
        layer_sec: seconds for each layer beside both; None takes the device's own.
        source: where the numbers come from.

    Raises:
        ValueError: for a number out of range.
    """

    name: str
    traffic: float = 1.0
    arithmetic: float = 1.0
    streaming: float = 1.0
    hiding: float = math.inf
    layer_sec: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for share in ("traffic", "arithmetic", "streaming"):
            if not 0 < getattr(self, share) < math.inf:
                raise ValueError(f"{self.name}: {share}: found {getattr(self, share)}, expected a number above 0")
        if not self.hiding >= 1:
            raise ValueError(f"{self.name}: hiding: found {self.hiding}, expected at least 1")
        if self.layer_sec is not None and not 0 <= self.layer_sec < math.inf:
            raise ValueError(f"{self.name}: layer_sec: found {self.layer_sec}, expected 0 or more seconds")

    def to_json(self) -> dict:
        """Return the numbers; complete hiding, which JSON has no number for, as null."""
        return asdict(self) | {"hiding": None if math.isinf(self.hiding) else self.hiding}


BOUND = Software("bound", layer_sec=0.0, source="the device's peaks")
TUNED = Software(
    "tuned", traffic=0.69, arithmetic=0.7, streaming=0.76, hiding=2.0,
    source="traffic: gpt-fast, Llama-2-7B in bfloat16 on an A100 80 GB, 104.9 tokens/s (its README); streaming: "
    "DeepSpeed-Zero-Inference, Llama-3-70B on an L40, 5.7 s per token (Sequoia paper); arithmetic: assumed; hiding: as "
    "found for compiled passes on processors",
)  # fmt: skip
EAGER = replace(
    TUNED, name="eager", layer_sec=4.6e-4,
    source="as tuned, and for each layer what brings Llama-2-7B on an A100 80 GB to the 24.2 ms per token that the "
    "Sequoia paper reports for Hugging Face's software",
)  # fmt: skip
SOFTWARE = {software.name: software for software in (BOUND, TUNED, EAGER)}


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
    """Return the seconds of a pass over some tokens behind a context.

    Offloaded layers stream in while those before them compute, so the longer of the two counts.

    Args:
        tokens: n of the pass, any shape.
        offload: "host" or "disk" where the layers are streamed from there; None keeps all weights on the device.

    Returns:
        float64 of the shape of `tokens`.

    Raises:
        ValueError: for a format or a link that the device does not have.
    """
    reading, computing = _demands(shape, tokens, device, dtype, context)
    together = _together(reading / software.traffic, computing / software.arithmetic, software.hiding)
    found = together + shape.layers * _layer_sec(software, device)
    if offload is None:
        return found
    return np.maximum(found, shape.layers * layer_read_sec(shape, device, dtype, software, offload))


def layer_read_sec(shape: ModelShape, device: Device, dtype: str, software: Software, offload: str) -> float:
    """Return the seconds in which one offloaded layer arrives."""
    return shape.layer_parameters * bytes_of(dtype) / (device.link(offload) * software.streaming)


def turning_point(
    shape: ModelShape, device: Device, *, dtype: str = "bfloat16", context: int = 128, offload: str | None = None
) -> int | None:
    """Return the first n whose arithmetic takes longer than reading, at the device's peaks; None beyond 4,096.

    Below it arithmetic lies idle, which is what speculation lives on.
    """
    tokens = np.arange(1, MOST_TOKENS + 1)
    reading, computing = _demands(shape, tokens, device, dtype, context)
    if offload is not None:
        reading = np.maximum(reading, shape.layers * layer_read_sec(shape, device, dtype, BOUND, offload))
    beyond = computing > reading
    return int(tokens[np.argmax(beyond)]) if beyond.any() else None


def fit_software(
    shape: ModelShape,
    device: Device,
    seconds: Mapping[int, float],
    *,
    dtype: str,
    context: int = 128,
    hiding: float = 2.0,
    layer_sec: float = 0.0,
    source: str = "",
) -> Software:
    """Return the software whose passes over two numbers of tokens take what was measured, and over others what follows.

    Args:
        seconds: tokens -> seconds of a pass, for exactly two numbers of tokens: one, and one that is bound by
            arithmetic.
        hiding, layer_sec: as for `Software`; not fitted.

    Raises:
        ValueError: for other than two times, or times that no shares of the peaks explain.
    """
    if len(seconds) != 2:
        raise ValueError(f"seconds: found times for {len(seconds)} numbers of tokens, expected exactly two")
    few, many = sorted(seconds)
    reading, computing = _demands(shape, [few, many], device, dtype, context)
    spent = np.array([seconds[few], seconds[many]]) - shape.layers * layer_sec
    if np.any(spent <= 0):
        raise ValueError(
            f"seconds: found {dict(seconds)}, expected more than {shape.layers * layer_sec:g} s of layer_sec"
        )
    if math.isinf(hiding):
        factors = spent / np.array([reading[0], computing[1]])
    else:  # the h-th powers of the two factors enter linearly
        powers = np.linalg.solve(np.stack([reading, computing], axis=1) ** hiding, spent**hiding)
        if np.any(powers <= 0):
            raise ValueError(
                f"seconds: found {seconds[few]:g} s for {few} and {seconds[many]:g} s for {many} tokens, expected "
                "times that reading and computing explain together"
            )
        factors = powers ** (1 / hiding)
    traffic, arithmetic = (float(1 / factor) for factor in factors)
    return Software("fitted", traffic, arithmetic, hiding=hiding, layer_sec=layer_sec, source=source)


def reaching(
    software: Software, shape: ModelShape, device: Device, seconds: float, *, dtype: str, context: int = 128
) -> Software:
    """Return the software with the `layer_sec` that brings a pass over one token to a known time.

    Raises:
        ValueError: for a time below that of reading and computing alone.
    """
    bare = float(pass_sec(shape, 1, device, dtype=dtype, context=context, software=replace(software, layer_sec=0.0)))
    if seconds < bare:
        raise ValueError(f"seconds: found {seconds:g}, expected at least the {bare:g} that a pass takes anyway")
    source = f"{software.source}; layer_sec: what brings {shape.name} on {device.title} to {seconds:g} s for one token"
    return replace(software, name=f"{software.name}, slowed", layer_sec=(seconds - bare) / shape.layers, source=source)


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
    widths: Sequence[int] = WIDTHS,
) -> HardwareProfile:
    """Return the profile of a pair on a device as modelled; its `meta` says so and keeps what it was made from.

    Args:
        draft_software: None for that of the target.
        offload: where the target's layers are streamed from; the draft always lies on the device.

    Raises:
        ValueError: for models that do not fit into the device's memory, or a format or link that it does not have.
    """
    draft_software = software if draft_software is None else draft_software
    sizes = sorted({1, *sizes})
    needed = memory_bytes(target, draft, dtype=dtype, tokens=context + sizes[-1], offload=offload)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        remedy = "a smaller pair or number format, or the target offloaded" if offload is None else "a smaller pair"
        raise ValueError(
            f"{target.name} <- {draft.name}: found {needed / 1e9:,.1f} GB needed in {dtype}, expected at most the "
            f"{device.memory_bytes / 1e9:,.0f} GB of {device.title} ({remedy})"
        )
    common = {"dtype": dtype, "context": context}
    verify = pass_sec(target, sizes, device, software=software, offload=offload, **common)
    drafting = pass_sec(draft, widths, device, software=draft_software, **common)
    meta = {
        "modelled": True, "target": target.model or target.name, "draft": draft.model or draft.name,
        "target_shape": target.name, "draft_shape": draft.name, "device_model": device.to_json(),
        "software": software.to_json(), "draft_software": draft_software.to_json(), "offload": offload,
    }  # fmt: skip
    if offload is not None:
        read_sec = layer_read_sec(target, device, dtype, software, offload)
        meta["streaming"] = {"layers": target.layers, "buffers": RING, "layer_read_sec": read_sec}
    return HardwareProfile(
        sizes=sizes, verify_sec=verify, draft_sec=float(pass_sec(draft, 1, device, software=draft_software, **common)),
        device=device.title, dtype=dtype, context=context, draft_widths=list(widths), draft_width_sec=drafting,
        meta=meta,
    )  # fmt: skip


def memory_bytes(target: ModelShape, draft: ModelShape, *, dtype: str, tokens: int, offload: str | None) -> int:
    """Return the bytes that a pair needs on the device: weights, or what streaming keeps of them, and both caches."""
    size = bytes_of(dtype)
    kept = target.parameters if offload is None else target.resident_parameters + RING * target.layer_parameters
    return size * (kept + draft.parameters) + tokens * (target.kv_bytes(dtype) + draft.kv_bytes(dtype))


def _demands(
    shape: ModelShape, tokens: int | Sequence[int] | np.ndarray, device: Device, dtype: str, context: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of reading and of computing at the device's peaks, float64 of the shape of `tokens` each."""
    tokens = np.asarray(tokens, dtype=np.float64)
    visible = context + tokens
    reading = shape.read_parameters * bytes_of(dtype) + shape.kv_bytes(dtype) * visible
    return reading / device.bytes_per_sec, tokens * shape.operations_per_token(visible) / device.rate(dtype)


def _together(reading: np.ndarray, computing: np.ndarray, hiding: float) -> np.ndarray:
    """Return (reading^hiding + computing^hiding)^(1/hiding), the longer of the two where hiding is infinite."""
    longer, shorter = np.maximum(reading, computing), np.minimum(reading, computing)
    return longer if math.isinf(hiding) else longer * (1 + (shorter / longer) ** hiding) ** (1 / hiding)


def _layer_sec(software: Software, device: Device) -> float:
    return device.layer_sec if software.layer_sec is None else software.layer_sec
