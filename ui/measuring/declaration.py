"""The conditions that a vector is valid for: recorded by its measurement or declared by the user."""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.conditions import Conditions
from ui import controls
from ui.cards import draw_error
from ui.markdown import escaped
from ui.session import predictions, session


def declaration_section(vector: AcceptanceVector) -> None:
    """Show the vector's conditions and let the user declare different ones."""
    conditions = vector.holds_for
    if conditions is None:  # the prediction badge asks for them
        return
    origin = "as declared by you" if conditions.declared else "as recorded by the measurement"
    pair = f"{escaped(conditions.target)} ← {escaped(conditions.draft)}"
    st.caption(f":material/rule: Valid for {pair}, {escaped(conditions.sampling)}, {origin}.")
    with st.expander("Declare different conditions", icon=":material/edit_note:", key="acceptance_declare"):
        declaration_form()


def declaration_form() -> None:
    """Draw a form for declaring the conditions of the current vector."""
    with st.form("acceptance_declared", border=False):
        here = predictions.conditions()
        left, right = st.columns(2)
        target = left.text_input("Target", here.target, key="acceptance_for_target", help="The name in the plan bar.")
        draft = right.text_input("Draft", here.draft, key="acceptance_for_draft", help="The name in the plan bar.")
        temperature = left.number_input("Temperature", 0.0, 2.0, 0.0, 0.1, key="acceptance_for_temperature")
        top_p = right.number_input("Top-p", 0.05, 1.0, 1.0, 0.05, key="acceptance_for_top_p")
        verifier = controls.verifier_control(left, key="acceptance_for_verifier")
        if right.form_submit_button("Declare", icon=":material/check:", width="stretch"):
            try:
                session.declare_conditions(Conditions(target, draft, temperature, top_p, verifier, declared=True))
            except ValueError as error:
                draw_error(error)
                return
            st.rerun()
