"""The location of the target's weights: its selection, and the memory that streaming needs.

Requires the optional package `offloading`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.profile import TIER_NAMES
from ui.session import machine, model_pairs, predictions

if TYPE_CHECKING:
    from sequoia_extras.offloading.needs import OffloadNeeds

MEANING = (
    "On disk: every pass reads the target's layers again, so the target may be larger than memory. Verifying dozens "
    "of tokens takes about as long as verifying one."
)


def weights_control(spec: PairSpec, key: str) -> str | None:
    """Show a select box in a form and return the tier, as in `PairSpec.offload`."""
    tiers = {
        location.capitalize(): tier for tier, location in TIER_NAMES.items() if tier != "host" or machine.has_gpu()
    }
    chosen = st.selectbox(
        "Location of the target's weights",
        list(tiers),
        index=list(tiers.values()).index(spec.offload) if spec.offload in tiers.values() else 0,
        key=f"{key}_weights",
        help="In memory is fastest if the target fits. The draft is always in memory.",
    )
    st.caption(MEANING)
    return tiers[chosen]


def check_needs(spec: PairSpec) -> tuple[bool, str]:
    """Return whether a pair with a streamed target can be loaded, and the memory that it needs or the problem."""
    location = f"Target {TIER_NAMES[spec.offload]}"
    if not all(Path(name).expanduser().is_dir() for name in spec.named):
        return True, f"{location}: its memory needs are known once it is downloaded"
    try:
        needs = _needs(spec, predictions.resolve_dtype(spec))
    except (ValueError, OSError) as error:
        return False, str(error)
    parts = {"resident": needs.resident, "ring": needs.ring, "cache": needs.cache, "scratch": needs.scratch}
    parts |= {} if spec.is_alone else {"draft": needs.draft}
    listed = ", ".join(f"{part} {size / 1e6:,.0f}" for part, size in parts.items())
    copied = f"; a packed copy of {needs.copy / 1e6:,.0f} MB is written to disk" if needs.copy else ""
    return True, f"{location}: takes {needs.memory / 1e6:,.0f} MB{machine.free_memory()} ({listed}){copied}"


@st.cache_resource(show_spinner="Computing memory needs…", max_entries=8)
def _needs(spec: PairSpec, dtype: str) -> OffloadNeeds:
    model_pairs.import_transformers()
    from sequoia_extras.offloading.loading import streaming_needs

    return streaming_needs(replace(spec, dtype=dtype))
