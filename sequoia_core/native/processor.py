"""The processor: its name and features."""

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
