"""The device that the engine will use, asked for once per server."""

import streamlit as st

from sequoia_core.models import device
from sequoia_core.native import instruction_sets

_cached = st.cache_resource(show_spinner=False)
has_gpu = _cached(device.has_gpu)
device_name = _cached(device.device_name)
instructions = _cached(instruction_sets.instructions_in_use)
facts = _cached(device.device_facts)
