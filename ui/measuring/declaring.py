"""What a vector holds for: said by its measurement, or declared by its user where a file does not say."""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from ui import controls
from ui.markdown import escaped
from ui.session import predictions, session


def section(vector: AcceptanceVector) -> None:
    """Say what the vector holds for, and let its user say that it is something else."""
    held = vector.holds_for
    if held is None:  # the chip of predictions asks
        return
    by = "as you declared" if held.declared else "as the measurement recorded"
    st.caption(
        f":material/rule: Holds for {escaped(held.target)} ← {escaped(held.draft)}, {escaped(held.sampling)}, {by}."
    )
    with st.expander("Declare that it holds for something else", icon=":material/edit_note:", key="acceptance_declare"):
        form()


def form() -> None:
    """Let the user say what the vector in use was measured for."""
    with st.form("acceptance_declared", border=False):
        here = predictions.conditions()
        left, right = st.columns(2)
        target = left.text_input(
            "Target", here.target, key="acceptance_for_target", help="As the pair in the sidebar names it."
        )
        draft = right.text_input("Draft", here.draft, key="acceptance_for_draft", help="As the target.")
        temperature = left.number_input("Temperature", 0.0, 2.0, 0.0, 0.1, key="acceptance_for_temperature")
        top_p = right.number_input("Top-p", 0.05, 1.0, 1.0, 0.05, key="acceptance_for_top_p")
        verifier = controls.verifier(left, key="acceptance_for_verifier")
        if right.form_submit_button("Declare", icon=":material/check:", width="stretch"):
            try:
                session.declare(Conditions(target, draft, temperature, top_p, verifier, declared=True))
            except ValueError as error:
                st.error(escaped(str(error)), icon=":material/error:")
                return
            st.rerun()
