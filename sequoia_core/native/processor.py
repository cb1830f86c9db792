"""The processor: its name and features, and how many of its cores this process may use."""

import os
import platform
from functools import cache
from pathlib import Path


@cache
def _facts() -> list[str] | None:
    """Return what the system lists of its processors; None where it does not."""
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None


def processor_flags() -> str:
    """Return the processor's features: its flags where the system lists them, else its name."""
    if (lines := _facts()) is None:
        return platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def processor_name() -> str:
    """Return the processor's name as the system gives it, "CPU" where it gives none."""
    if (lines := _facts()) is None:
        return platform.processor() or "CPU"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")


def usable_cores() -> list[int]:
    """Return the cores that this process may run on, by its affinity (taskset)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def allowed_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy, at least one: by its affinity and its control groups' quotas.

    A part of a core is not counted. Quotas are read for control groups of version 1 and 2.

    Args:
        root: where proc and sys are.
    """
    return max(1, int(min([*_quotas(root), len(usable_cores())])))


def _quotas(root: Path) -> list[float]:
    """Return how many cores each control group of this process may use; nothing for groups without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = top / path.lstrip("/")
        for folder in {top, group, *(parent for parent in group.parents if parent.is_relative_to(top))}:
            quotas += _quota(folder)
    return quotas


def _quota(folder: Path) -> list[float]:
    """Return the limit that a control group's files state, in cores."""
    try:
        text = " ".join((folder / name).read_text() for name in _quota_files(folder))
        quota, period = (int(number) for number in text.split())
    except (OSError, ValueError):  # other files, or "max" for no limit
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _quota_files(folder: Path) -> list[str]:
    return ["cpu.max"] if (folder / "cpu.max").is_file() else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
