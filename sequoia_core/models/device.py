"""The devices that models run on: GPU detection, device names, free memory.

This module imports torch only if there may be a GPU, or to describe a torch device.
"""

import subprocess
import sys
from pathlib import Path

from .processor import allowed_cores, processor_flags, processor_name

GPU_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/kfd", "/dev/dxg")
GPU_QUERIES = {  # name in records -> field of nvidia-smi
    "card": "name",
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "max_sm_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "max_memory_mhz": "clocks.max.mem",
    "power_limit_watts": "power.limit",
}
CONTROL_GROUP = Path("/sys/fs/cgroup")


def has_gpu() -> bool:
    """Return whether models will run on a CUDA device, without importing torch if there cannot be one."""
    if sys.platform != "win32" and not any(Path(driver).exists() for driver in GPU_DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


def device_name() -> str:
    """Return the name of the device that models will run on: the GPU, or the processor with its available cores."""
    if has_gpu():
        import torch

        return torch.cuda.get_device_name()
    count = allowed_cores()
    return f"{processor_name()}, {count} core{'s' if count > 1 else ''}"


def describe_device(device) -> str:
    """Return a torch device's name for records: the GPU's, or the processor's with the number of torch threads."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor_name()}, {threads} thread{'s' if threads > 1 else ''}"


def device_facts() -> list[str]:
    """Describe the device that models will run on in a few phrases: name, memory and dtypes."""
    if has_gpu():
        import torch

        formats = ["float32", "float16"] + (["bfloat16"] if torch.cuda.is_bf16_supported() else [])
        memory = torch.cuda.get_device_properties(0).total_memory
        facts = [
            device_name(),
            f"{memory / 2**30:.0f} GiB",
            describe_gpu(gpu_record(0)),
            f"formats: {', '.join(formats)}",
        ]
        return list(filter(None, facts))
    import psutil

    flags = processor_flags().split()
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((name for flag, name in units.items() if flag in flags), None)
    memory = psutil.virtual_memory()
    return [
        device_name(),
        f"{memory.total / 2**30:.0f} GiB memory, {memory.available / 2**30:.0f} free",
        *([f"vector unit: {widest}"] if widest else []),
        "no GPU found",
    ]


def gpu_record(device) -> dict[str, str | float]:
    """Return a CUDA device's driver, clocks in MHz and power limit in watts; empty if nvidia-smi does not report them.

    Single values that it does not know are left out.
    """
    import torch

    uuid = torch.cuda.get_device_properties(device).uuid
    query = ",".join(GPU_QUERIES.values())
    command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in output.split(",")]
    if len(values) != len(GPU_QUERIES):
        return {}
    record: dict[str, str | float] = {}
    for name, value in zip(GPU_QUERIES, values, strict=True):
        if name in ("card", "driver"):
            record[name] = value
        elif value.replace(".", "", 1).isdigit():
            record[name] = float(value)
    return record


def describe_gpu(record: object) -> str:
    """Return what a profile's `gpu_record` says in a phrase; empty if it says nothing, as in files of other origin."""
    if not isinstance(record, dict):
        return ""
    phrases = {
        "driver": "driver {}",
        "sm_mhz": "SM clock {} MHz",
        "max_sm_mhz": "at most {}",
        "memory_mhz": "memory clock {} MHz",
        "max_memory_mhz": "at most {}",
        "power_limit_watts": "power limit {} W",
    }
    values = {name: str(record[name])[:40].removesuffix(".0") for name in phrases if name in record}
    return ", ".join(phrases[name].format(value) for name, value in values.items())


def available_bytes() -> int | None:
    """Return the available memory of the system or its container, whichever is less, in bytes; None if unknown."""
    sizes = [value for value in (_system_available(), _container_available()) if value is not None]
    return min(sizes, default=None)


def _system_available() -> int | None:
    if sys.platform != "linux":
        return None
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _container_available() -> int | None:
    try:
        limit, used = ((CONTROL_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used) + int(counts.get("inactive_file", 0)))
