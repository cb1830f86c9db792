"""The device that the engine will use, asked for once per server."""

from __future__ import annotations

import streamlit as st

from sequoia_core.models import device
from sequoia_core.native import instruction_sets

has_gpu = st.cache_resource(device.has_gpu, show_spinner=False)
device_name = st.cache_resource(device.device_name, show_spinner=False)
instructions = st.cache_resource(instruction_sets.instructions_in_use, show_spinner=False)
facts = st.cache_resource(device.device_facts, show_spinner=False)
