"""How much memory is free on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the free bytes, without swapping: of the system, or of its container if that is less; None if unknown."""
    sizes = [value for value in (_of_system(), _of_group()) if value is not None]
    return min(sizes, default=None)


def _of_system() -> int | None:
    if sys.platform != "linux":
        return None
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_group() -> int | None:
    try:
        limit, used = ((GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used) + int(counts.get("inactive_file", 0)))
