"""The form that times the model pair on this machine, and the job behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from ui import controls
from ui.jobs import job_panel
from ui.jobs.jobs import JobContext
from ui.markdown import escaped
from ui.session import machine, session

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile


def section() -> None:
    """Offer to time the model pair on this machine and show the progress."""
    with st.form("hardware_measure"):
        largest = st.select_slider(
            "Largest tree",
            [16, 32, 64, 128, 256, 512, 1024, 2048],
            64,
            key="hardware_largest",
            help="Target passes of 1, 2, 4, … up to this many tokens are timed. A GPU deserves 256 or more.",
        )
        context = st.select_slider(
            "Context",
            [32, 64, 128, 256, 512],
            128,
            key="hardware_context",
            help="Tokens already in the cache while timing; attention over a longer prefix costs more.",
        )
        repeats = st.select_slider(
            "Repeats",
            [3, 5, 9, 15, 25],
            9,
            key="hardware_repeats",
            help="Each size is timed this often after a warm-up; the median counts, the spread is shown.",
        )
        blocked = controls.lacks_draft("A profile of this machine") or job_panel.is_active("profile")
        if controls.primary_button(
            f"Measure this machine ({escaped(machine.device_name())})",
            draw=st.form_submit_button,
            icon=":material/speed:",
            disabled=blocked,
        ):
            if submit(largest, context, repeats):
                st.rerun()
    job_panel.draw("profile")


def submit(largest: int, context: int, repeats: int, *, bound: bool = True) -> bool:
    """Queue the profiling behind whatever else uses the device, or its timings would be wrong -> whether it is.

    `bound`: measure as well what the device's bandwidth and arithmetic allow, which takes longer.
    """
    spec = session.pair_spec()
    sizes = [2**k for k in range(largest.bit_length())]

    def work(job: JobContext) -> HardwareProfile:
        from sequoia_core import measure_profile
        from sequoia_core.studies.measure_bounds import with_bound

        pair = job.pair(spec)
        profile = measure_profile(
            pair, sizes=sizes, context=context, repeats=repeats, progress=job.progress, cancel=job.cancel
        )
        return with_bound(profile, pair.target) if bound and not job.cancel.is_set() else profile

    return job_panel.submit("profile", "Profiling", work, info=f"measured here on the {session.pair_name()}")
