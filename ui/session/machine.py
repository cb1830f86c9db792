"""The device that the engine uses, detected once per server."""

import streamlit as st

from sequoia_core.models import device, processor

_cached = st.cache_resource(show_spinner=False)
has_gpu = _cached(device.has_gpu)
device_name = _cached(device.device_name)
facts = _cached(device.device_facts)
instructions = _cached(processor.instructions_in_use)


def free_bytes() -> int | None:
    """Return the free memory of the device that models run on; None if unknown."""
    if not has_gpu():
        return device.available_bytes()
    import torch

    return int(torch.cuda.mem_get_info()[0])


def free_memory() -> str:
    """Return a phrase that states the free memory; empty if it is unknown."""
    free = free_bytes()
    return "" if free is None else f" of {free / 1e6:,.0f} MB free"
