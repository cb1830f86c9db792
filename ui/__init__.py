"""Streamlit-side helpers: what the pages share; no maths of its own."""

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once
