"""The device that the engine will use, found without paying for torch where that can be avoided."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import streamlit as st

from sequoia_core.models.device import processor_name

GPU_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/kfd", "/dev/dxg")


@st.cache_resource(show_spinner=False)
def has_gpu() -> bool:
    """Whether the engine will run on a CUDA device, without paying for torch where there can be none."""
    if sys.platform != "win32" and not any(Path(driver).exists() for driver in GPU_DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


@st.cache_resource(show_spinner=False)
def device_name() -> str:
    """Name the device the engine will use: the GPU, or the processor with its cores."""
    if has_gpu():
        import torch

        return torch.cuda.get_device_name()
    return f"{processor_name()}, {os.cpu_count()} cores"
