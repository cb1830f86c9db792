"""One chip that says everywhere what predictions rest on, and one button that measures what is missing."""

from typing import Literal

import streamlit as st

from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.measuring import acceptance, profile
from ui.session import predictions, session
from ui.session.predictions import ANOTHER, MEASURED, MISSING, MODELLED

LOOKS: dict[str, tuple[str, Literal["green", "gray"]]] = {
    MEASURED: (":material/verified:", "green"),
    ANOTHER: (":material/swap_horiz:", "gray"),
    MODELLED: (":material/functions:", "gray"),
    MISSING: (":material/help:", "gray"),
}
JOBS = ("profile", "measure")
PROFILE = {"largest": 64, "context": 128, "repeats": 9}
PROMPTS, NEW_TOKENS = 32, 64  # of the acceptance measured; with loading about 10 s on two cores


def draw() -> None:
    """Draw the chip, and the button where something can be measured."""
    state = predictions.state()
    icon, color = LOOKS[state.name]
    with st.container(horizontal=True, vertical_alignment="center", key="prediction_state"):
        held = session.acceptance().holds_for
        at = "" if held is None else f", {held.sampling}"
        words = f"Predictions here rest on: {state.name}{escaped(at)}. {_why(state.why)}"
        st.badge(f"{state.name}{escaped(at)}", icon=icon, color=color, help=words)
        if state.name == MEASURED or session.pair_spec().is_alone:
            return
        running = [name for name in JOBS if job_panel.is_active(name)]
        if running:
            for name in running:
                st.button("Cancel", key=f"{name}_cancel_here", icon=":material/stop:", on_click=_cancel, args=(name,))
        elif st.button(
            "Measure (10 s)" if session.pair_spec().is_demo else "Measure",
            key="measure_here",
            icon=":material/speed:",
            help=f"Times passes of the {session.pair_name()} on this machine and how often its draft is right, on "
            f"{PROMPTS} shipped prompts, as far as that is not known. Every page then plans with it.",
        ):
            measure()


def _why(words: str) -> str:
    return f"{escaped(words[0].upper() + words[1:])}." if words else "Acceptance and times are of this pair here."


def measure() -> None:
    """Queue what predictions for the pair in use on this machine lack."""
    session.leave_scenario()
    if predictions.profile_faults():
        profile.submit(**PROFILE, bound=False)
    if predictions.vector_faults():
        wanted = predictions.conditions(*session.sampling())
        acceptance.start_for(wanted, prompts=PROMPTS, tokens=NEW_TOKENS)
    st.rerun()


def _cancel(name: str) -> None:
    job = session_jobs.job(name)
    if job is not None:
        job.cancel()
