"""The button that makes the measurements that predictions lack."""

from typing import Any, NamedTuple

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.conditions import Conditions
from ui import controls
from ui.jobs import job_panel, session_jobs
from ui.measuring import acceptance, profile
from ui.session import predictions, session
from ui.session.state import state

JOBS = ("profile", "measure")


class Effort(NamedTuple):
    """Settings of the two measurements.

    Attributes:
        profile: arguments of `submit_profiling`.
        acceptance: arguments of `measure_for`.
    """

    profile: dict[str, Any]
    acceptance: dict[str, int]


CONTEXT = 128
# About 10 s for the demo pair on two cores, including loading; several minutes for a pair of 270 million parameters.
THOROUGH = Effort(
    {"sizes": [1, 2, 4, 8, 16, 32, 64], "context": CONTEXT, "repeats": 9},
    {"prompts": 32, "tokens": 64},
)
# About a minute for a pair of 270 million parameters on two cores, without loading.
QUICK = Effort(
    {"sizes": [1, 4, 12, 32], "context": CONTEXT, "repeats": 3, "brief": True},
    {"prompts": 6, "tokens": 32, "ranks": 16},
)


def measure_button(wanted: Conditions | None = None, vector: AcceptanceVector | None = None) -> None:
    """Draw the button that measures the current pair on this machine, or cancels the measurement.

    Args:
        wanted: the conditions of one decode; None for the session's sampling.
        vector: the vector measured under these conditions; None without one.
    """
    key = "measure_here" if wanted is None else "measure_wanted"
    running = [name for name in JOBS if job_panel.is_active(name)]
    if running:
        st.button("Cancel", key=f"{key}_cancel", icon=":material/stop:", on_click=_cancel, args=(running,))
        return
    first = predictions.prediction_basis().name == predictions.UNMEASURED
    draw, label = (controls.primary_button, "Measure first") if first else (st.button, "Measure")
    if draw(
        f"{label} ({'10 s' if session.pair_spec().is_demo else 'about 1 min'})",
        key=key,
        icon=":material/speed:",
        help=f"Makes the missing measurements: the pass times of the {session.pair_name()} on this machine and its "
        f"acceptance on {usual_effort().acceptance['prompts']} shipped prompts. All pages then use them.",
    ):
        measure_missing(wanted, vector)


def usual_effort() -> Effort:
    """Return the effort of a first measurement: the demo pair is fast enough for a thorough one."""
    return THOROUGH if session.pair_spec().is_demo else QUICK


def measure_missing(wanted: Conditions | None = None, vector: AcceptanceVector | None = None) -> None:
    """Queue the measurements that are missing for predictions on the current pair and this machine."""
    effort = usual_effort()
    session.use_profile(None)
    hardware = session.profile()
    if hardware is None or predictions.basis_of_times(hardware)[0] != predictions.MEASURED:
        state().contradiction = None
        profile.submit_profiling(**effort.profile)
    if wanted is None:
        wanted = predictions.conditions(*session.sampling())
        vector = predictions.vector_for(wanted)
        session.use_vector(None)
    if vector is None:
        acceptance.measure_for(wanted, **effort.acceptance)
    st.rerun()


def measure_thoroughly() -> None:
    """Queue both measurements with more prompts, sizes and rounds."""
    if profile.submit_profiling(**THOROUGH.profile):
        acceptance.measure_for(predictions.conditions(*session.sampling()), **THOROUGH.acceptance)


def _cancel(names: list[str]) -> None:
    for name in names:
        job = session_jobs.find_job(name)
        if job is not None:
            job.cancel()
