"""One chip that says everywhere what predictions rest on, and one button that measures what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import streamlit as st

from ui import controls
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.measuring import acceptance, declaring, profile
from ui.session import predictions, session
from ui.session.predictions import CONTRADICTED, MEASURED, MISSING, MODELLED

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector
    from sequoia_core.design.conditions import Conditions

ICONS = {
    MEASURED: ":material/verified:",
    MODELLED: ":material/functions:",
    MISSING: ":material/help:",
    CONTRADICTED: ":material/warning:",
}
COLOURS: dict[str, Literal["green", "yellow", "gray"]] = {MEASURED: "green", CONTRADICTED: "yellow"}
JOBS = ("profile", "measure")
PROFILE = {"largest": 64, "context": 128, "repeats": 9}
PROMPTS, NEW_TOKENS = 32, 64  # of the acceptance measured; with loading about 10 s on two cores


def draw(wanted: Conditions | None = None, vector: AcceptanceVector | None = None, *, measures: bool = True) -> None:
    """Draw the chip, and the button where something can be measured: of all predictions, or those of one decode.

    Args:
        wanted, vector: as `predictions.state` has them.
        measures: False where the page has another button for it.
    """
    state = predictions.state(wanted, vector)
    with st.container(horizontal=True, vertical_alignment="center", width="content", key="prediction_state"):
        held = wanted or session.acceptance().holds_for
        at = "" if held is None else f", {held.sampling}"
        words = f"What predictions are based on: {state.name}{escaped(at)}. {_why(state.why)}"
        shown_at = escaped(at) if state.name == MEASURED else ""  # the other names leave no room
        unsaid = state.name == MISSING and session.acceptance().holds_for is None
        st.badge(
            "No prediction: which models is this vector of?" if unsaid else f"Predictions: {state.name}{shown_at}",
            icon=ICONS.get(state.name, ":material/swap_horiz:"),
            color=COLOURS.get(state.name, "gray"),
            help=words,
        )
        if state.name == MEASURED or session.pair_spec().is_alone or not measures:
            return
        if unsaid:
            with st.popover("What was it measured for?", icon=":material/edit_note:", key="declare_here"):
                st.markdown("The acceptance vector in use does not say. Confirm these, or change them:")
                declaring.form()
        running = [name for name in JOBS if job_panel.is_active(name)]
        if running:
            st.button("Cancel", key="cancel_here", icon=":material/stop:", on_click=_cancel, args=(running,))
            return
        first = predictions.lacks_measurement()
        draw, label = (controls.primary_button, "Measure first") if first else (st.button, "Measure")
        if draw(
            f"{label} (10 s)" if session.pair_spec().is_demo else label,
            key="measure_here",
            icon=":material/speed:",
            help=f"Times passes of the {session.pair_name()} on this machine and how often its draft is right, on "
            f"{PROMPTS} shipped prompts, as far as that is not known. Every page then plans with it.",
        ):
            measure(wanted, vector)


def _why(words: str) -> str:
    if not words:
        return f"Times were measured by this installation. Acceptance: {escaped(session.acceptance_source())}."
    return f"{escaped(words[0].upper() + words[1:])}."


def measure(wanted: Conditions | None = None, vector: AcceptanceVector | None = None) -> None:
    """Queue what predictions for the pair in use on this machine lack."""
    session.leave_scenario()
    if predictions.profile_faults() or predictions.contradiction() is not None:
        profile.submit(**PROFILE, bound=False)
    if predictions.vector_faults() if wanted is None else vector is None:
        acceptance.start_for(wanted or predictions.conditions(*session.sampling()), prompts=PROMPTS, tokens=NEW_TOKENS)
    st.rerun()


def _cancel(names: list[str]) -> None:
    for name in names:
        job = session_jobs.job(name)
        if job is not None:
            job.cancel()
