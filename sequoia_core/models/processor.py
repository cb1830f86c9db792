"""The processor's name and features, and the number of cores that this process may use."""

import os
import platform
from functools import cache
from pathlib import Path

from ..files.extras import provided


@cache
def _facts() -> list[str] | None:
    """Return the lines of /proc/cpuinfo; None if it does not exist."""
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None


def processor_flags() -> str:
    """Return the processor's feature flags if the system lists them, otherwise its name."""
    if (lines := _facts()) is None:
        return platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def processor_name() -> str:
    """Return the processor's name as reported by the system, otherwise "CPU"."""
    if (lines := _facts()) is None:
        return platform.processor() or "CPU"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")


def instructions_in_use() -> str | None:
    """Return the instruction set of the compiled passes, which the processor's name does not imply, or None."""
    return next((found() for found in provided("instructions_in_use")), None)


def usable_cores() -> list[int]:
    """Return the cores in this process's affinity mask (taskset)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def allowed_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, according to its affinity and its cgroup quotas.

    Fractions are rounded down, but to at least one core. cgroup versions 1 and 2 are supported.

    Args:
        root: the folder that contains proc and sys.
    """
    return max(1, int(min([*_quotas(root), len(usable_cores())])))


def _quotas(root: Path) -> list[float]:
    """Return the CPU quota, in cores, of each of this process's cgroups that has one."""
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
    """Return a cgroup's CPU quota in cores; empty without a limit."""
    try:
        text = " ".join((folder / name).read_text() for name in _quota_files(folder))
        quota, period = (int(number) for number in text.split())
    except (OSError, ValueError):  # "max" means no limit
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _quota_files(folder: Path) -> list[str]:
    return ["cpu.max"] if (folder / "cpu.max").is_file() else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
