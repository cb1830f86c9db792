"""Changes to the current vector: reversible smoothing, manual editing, and hypothetical vectors."""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.what_if import edited, isotonic, power_law, power_law_tail, weaker
from ui import controls
from ui.cards import draw_error
from ui.markdown import escaped
from ui.session import session

SMOOTHINGS = ("None", "Isotonic", "Power-law tail")


def smoothing_controls() -> None:
    """Offer smoothing, which is never applied automatically; "None" restores the measured vector."""
    original = session.original_acceptance()
    if not session.is_varied():
        st.session_state["acceptance_smoothing"] = "None"
    left, right = st.columns(2)
    kind = left.segmented_control(
        "Smoothing",
        SMOOTHINGS,
        required=True,
        key="acceptance_smoothing",
        on_change=_smooth,
        help="Isotonic: the closest vector whose entries never increase. Power-law tail: later ranks follow a line "
        "fitted to log P(all rejected) against log k. Smoothing is applied only if you select it; None undoes it.",
    )
    if kind == "Power-law tail" and len(original) > 2:
        right.slider(
            "First rank replaced",
            2,
            len(original) - 1,
            min(4, len(original) - 1),
            key="acceptance_tail",
            on_change=_smooth,
            help="Earlier ranks keep their measured values.",
        )
    if session.is_varied():
        st.caption(f":material/tune: {escaped(session.acceptance().note.split('; ')[-1].capitalize())}.")


def _smooth() -> None:
    """Apply the selected smoothing to the measured vector, or restore it."""
    kind = st.session_state["acceptance_smoothing"]
    original = session.original_acceptance()
    if kind == "Isotonic":
        session.smooth_acceptance(isotonic(original))
    elif kind == "Power-law tail":
        start = min(st.session_state.get("acceptance_tail", 4), len(original))
        try:
            session.smooth_acceptance(power_law_tail(original, start=start))
        except ValueError as error:
            session.restore_acceptance()
            st.toast(f"{escaped(str(error))}. No smoothing is applied.", icon=":material/error:")
    else:
        session.restore_acceptance()


def edit_table(vector: AcceptanceVector) -> None:
    """Draw a table in which the user can edit the probabilities to create a new vector."""
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
    st.caption(f"Sum: {np.nansum(values):.4f}, at most 1. Rows are ranks in order; add or delete rows at the bottom.")
    if st.button("Use the edited values", icon=":material/check:", key="acceptance_use_edited", disabled=same):
        try:
            session.set_acceptance(
                edited(vector, np.array(values)), f"edited by hand, from: {session.acceptance_source()}", "edited"
            )
        except ValueError as error:
            draw_error(error, "The previous vector remains in use.")
            return
        st.rerun()


def what_if_controls() -> tuple[str, AcceptanceVector]:
    """Draw the controls for a hypothetical vector; return its short name and the vector."""
    base = session.original_acceptance()
    kind = st.segmented_control(
        "Suppose",
        ["Power law", "Weaker draft"],
        default="Power law",
        required=True,
        key="acceptance_suppose",
        help="Power law: the probability that the first k children are all rejected is (1 − p₁)·k^−b. "
        "Weaker draft: the current vector applies at only some of the positions.",
    )
    if kind == "Power law":
        first, second, third = st.columns(3)
        p1 = first.slider("p₁", 0.0, 1.0, round(float(base.probs[0]), 2), 0.01, key="acceptance_p1", help="Rank 1.")
        b = second.slider(
            "b", 0.0, 3.0, 0.5, 0.05, key="acceptance_b", help="Effect of extra children; at 0, only the first counts."
        )
        ranks = third.slider("Length", 1, 64, 32, key="acceptance_length", help="Number of ranks in the vector.")
        supposed = f"power law {p1:g}, {b:g}", power_law(p1, b, ranks)
    else:
        share = st.slider(
            "Positions with the current acceptance",
            0,
            100,
            50,
            5,
            format="%d%%",
            key="acceptance_share",
            help="At the other positions, every child is rejected.",
        )
        supposed = f"weaker, {share}%", weaker(base, share / 100)
    if controls.primary_button("Use this vector", icon=":material/check:", key="acceptance_use_supposed"):
        name, vector = supposed
        session.set_acceptance(vector, f"supposed, {name}", name)
        st.rerun()
    return supposed
