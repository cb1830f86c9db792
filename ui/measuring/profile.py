"""The form and the job for profiling the model pair on this machine."""

from collections.abc import Sequence

import streamlit as st

from sequoia_core import HardwareProfile
from ui import controls
from ui.jobs import job_panel
from ui.jobs.jobs import JobContext
from ui.markdown import escaped
from ui.session import machine, session


def profile_section() -> None:
    """Draw the form for profiling the pair on this machine, and the progress."""
    with st.form("hardware_measure"):
        largest = st.select_slider(
            "Largest tree",
            [16, 32, 64, 128, 256, 512, 1024, 2048],
            64,
            key="hardware_largest",
            help="Target passes over 1, 2, 4, … tokens, up to this number, are timed. Use 256 or more on a GPU.",
        )
        context = st.select_slider(
            "Context",
            [32, 64, 128, 256, 512],
            128,
            key="hardware_context",
            help="Number of tokens in the cache during timing; attention to a longer prefix costs more.",
        )
        repeats = st.select_slider(
            "Repeats",
            [3, 5, 9, 15, 25],
            9,
            key="hardware_repeats",
            help="Number of timings per size after a warm-up; the median is used, and the spread is shown.",
        )
        blocked = controls.warn_without_draft("A profile of this machine") or job_panel.is_active("profile")
        if controls.primary_button(
            f"Measure this machine ({escaped(machine.device_name())})",
            draw=st.form_submit_button,
            icon=":material/speed:",
            disabled=blocked,
        ):
            if submit_profiling([2**k for k in range(largest.bit_length())], context, repeats):
                st.rerun()
    job_panel.draw_job("profile")


def submit_profiling(sizes: Sequence[int], context: int, repeats: int, *, brief: bool = False) -> bool:
    """Queue profiling behind other jobs on the device, which would distort timings; return whether it was queued.

    See `measure_profile` for the arguments.
    """
    spec = session.pair_spec()

    def work(job: JobContext) -> HardwareProfile:
        from sequoia_core import measure_profile

        pair = job.pair(spec)
        return measure_profile(
            pair,
            sizes=sizes,
            context=context,
            repeats=repeats,
            brief=brief,
            progress=job.progress,
            cancel=job.cancel,
        )

    return job_panel.submit_job("profile", "Profiling", work, info=f"measured here on the {session.pair_name()}")
