"""The device that the engine will use, asked for once per server."""

from __future__ import annotations

import streamlit as st

from sequoia_core.models import device

has_gpu = st.cache_resource(device.has_gpu, show_spinner=False)
device_name = st.cache_resource(device.device_name, show_spinner=False)
facts = st.cache_resource(device.device_facts, show_spinner=False)
