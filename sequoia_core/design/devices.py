"""What devices can do at most: bandwidth, arithmetic, memory, links. Peaks as their makers state them, with sources.

Knows numbers only; what a model makes of them is `roofline`. This machine's own are measured by
`studies.measure_bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..files.model_names import DEMO_PAIR
from ..files.safe_files import read_bytes, read_json

FORMAT, VERSION = "sequoia-devices", 1
SHIPPED = DEMO_PAIR.parent / "devices.json"
LINKS = {"host": "host_bytes_per_sec", "disk": "disk_bytes_per_sec"}  # where offloaded weights lie -> how they come


@dataclass(frozen=True, slots=True)
class Device:
    """A processor or GPU.

    Args:
        name: short, as on a command line; title: as people call it.
        bytes_per_sec: of its own memory, read.
        operations_per_sec: additions and multiplications per second, dense, by number format.
        memory_bytes: of its own memory; None where nobody knows, and then everything fits.
        layer_sec: what a layer takes beside reading and computing, in software that is tuned for the device.
        host_bytes_per_sec, disk_bytes_per_sec: into the device, from the host's memory and from a disk; None where
            there is no such way.
        sources: of each number.

    Raises:
        ValueError: for a number that is not positive and finite.
    """

    name: str
    title: str
    bytes_per_sec: float
    operations_per_sec: Mapping[str, float]
    memory_bytes: float | None = None
    layer_sec: float = 0.0
    host_bytes_per_sec: float | None = None
    disk_bytes_per_sec: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {f"operations_per_sec of {dtype}": rate for dtype, rate in self.operations_per_sec.items()}
        for name in ("bytes_per_sec", "memory_bytes", *LINKS.values()):
            numbers[name] = getattr(self, name)
        for name, value in numbers.items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{self.name}: {name}: found {value}, expected a positive finite number")
        if not 0 <= self.layer_sec < math.inf:
            raise ValueError(f"{self.name}: layer_sec: found {self.layer_sec}, expected 0 or more seconds")

    def rate(self, dtype: str) -> float:
        """Return the operations per second in a number format.

        Raises:
            ValueError: for a format whose rate is not known.
        """
        if dtype not in self.operations_per_sec:
            raise ValueError(f"dtype: found {dtype[:40]!r}, expected one of {', '.join(self.operations_per_sec)}")
        return self.operations_per_sec[dtype]

    def link(self, offload: str) -> float:
        """Return the bytes per second at which offloaded weights can come.

        Args:
            offload: "host" or "disk".

        Raises:
            ValueError: for another place, or one that the device cannot read from.
        """
        if offload not in LINKS:
            raise ValueError(f"offload: found {offload[:40]!r}, expected one of {', '.join(LINKS)}")
        found = getattr(self, LINKS[offload])
        if found is None:
            raise ValueError(f"offload: found {offload!r}, expected another place: {self.title} has no such link")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, without their sources."""
        return {
            "name": self.name, "title": self.title, "bytes_per_sec": self.bytes_per_sec,
            "operations_per_sec": dict(self.operations_per_sec), "memory_bytes": self.memory_bytes,
            "layer_sec": self.layer_sec, "host_bytes_per_sec": self.host_bytes_per_sec,
            "disk_bytes_per_sec": self.disk_bytes_per_sec,
        }  # fmt: skip


def find_device(name: str) -> Device:
    """Return a device of the shipped table.

    Raises:
        ValueError: for a name that is not there.
    """
    known = _shipped()
    if name.lower() not in known:
        raise ValueError(f"device: found {name[:40]!r}, expected one of {', '.join(known)}")
    return Device(name=name.lower(), **known[name.lower()])


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    content = read_json(read_bytes(SHIPPED))
    assert (content["format"], content["version"]) == (FORMAT, VERSION), "the table ships with the code"
    return content["devices"]
