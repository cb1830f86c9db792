"""Changes to the vector in use: smoothing, which can be taken back, and numbers edited by hand."""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.what_if import edited, isotonic, power_law_tail
from ui.markdown import escaped
from ui.session import session

SMOOTHINGS = ("None", "Isotonic", "Power-law tail")


def smoothing_controls() -> None:
    """Offer smoothing, never applied by itself; "None" brings the measured vector back."""
    original = session.original_acceptance()
    if not session.is_varied():
        st.session_state["acceptance_smoothing"] = "None"
    left, right = st.columns([1, 1], vertical_alignment="top")
    kind = left.segmented_control(
        "Smoothing",
        SMOOTHINGS,
        required=True,
        key="acceptance_smoothing",
        on_change=_smooth,
        help="Isotonic: the closest vector whose ranks never increase. Power-law tail: later ranks follow a line "
        "fitted to log P(all rejected) over log k. Nothing is smoothed unless you say so, and None takes it back.",
    )
    problem = st.session_state.pop("acceptance_unsmooth", None)
    if problem:
        st.error(f"{escaped(problem)}. Nothing is smoothed.", icon=":material/error:")
    if kind == "Power-law tail" and len(original) > 2:
        right.slider(
            "First rank replaced",
            2,
            len(original) - 1,
            min(4, len(original) - 1),
            key="acceptance_tail",
            on_change=_smooth,
            help="Ranks before it stay as measured.",
        )
    if session.is_varied():
        st.caption(f":material/tune: {escaped(session.acceptance().note.split('; ')[-1].capitalize())}.")


def _smooth() -> None:
    """Replace the measured vector by the smoothing of the controls, or by none."""
    kind = st.session_state["acceptance_smoothing"]
    original = session.original_acceptance()
    if kind == "Isotonic":
        session.vary_acceptance(isotonic(original), "smoothed")
    elif kind == "Power-law tail":
        start = min(st.session_state.get("acceptance_tail", 4), len(original))
        try:
            session.vary_acceptance(power_law_tail(original, start=start), "smoothed")
        except ValueError as error:
            session.restore_acceptance()
            st.session_state["acceptance_unsmooth"] = str(error)
    else:
        session.restore_acceptance()


def edit_table(vector: AcceptanceVector) -> None:
    """Let the numbers be changed by hand; what results is a vector of its own."""
    rows = {"rank": list(range(1, len(vector) + 1)), "probability": vector.probs.tolist()}
    changed = st.data_editor(
        rows,
        key=f"acceptance_edit_{hash(vector)}",
        num_rows="dynamic",
        hide_index=True,
        height=260,
        column_config={
            "rank": st.column_config.NumberColumn("Rank", disabled=True),
            "probability": st.column_config.NumberColumn(
                "Probability", min_value=0.0, max_value=1.0, format="%.4f", step=0.0001
            ),
        },
    )
    values = [np.nan if value is None else float(value) for value in changed["probability"]]
    same = len(values) == len(vector) and bool(np.array_equal(values, vector.probs))
    st.caption(f"Sum {np.nansum(values):.4f} of at most 1. Rows are ranks in order; add or delete at the bottom.")
    if st.button("Use the edited values", icon=":material/check:", key="acceptance_use_edited", disabled=same):
        try:
            session.set_acceptance(
                edited(vector, np.array(values)), f"edited by hand, from: {session.acceptance_source()}", "edited"
            )
        except ValueError as error:
            st.error(
                f"Edited values: {escaped(str(error))}. The previous vector stays in use.",
                icon=":material/error:",
            )
            return
        st.rerun()
