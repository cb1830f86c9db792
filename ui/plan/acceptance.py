"""The acceptance vector to plan with: one of the known ones, or an uploaded one."""

import streamlit as st

from ui import controls, vector_input
from ui.markdown import escaped
from ui.session import predictions, session


def acceptance_title() -> str:
    """Return a short name of the current vector for a label."""
    name = session.acceptance_name() or "edited"
    return f"{name} (example)" if predictions.prediction_basis().name == predictions.UNMEASURED else name


def acceptance_control() -> None:
    """Draw the list of vectors, and the input of one's own."""
    current = session.acceptance_name()
    chosen = session.has_chosen_acceptance()
    automatic = "The one that fits models, machine and T"
    if current and not chosen:
        automatic += f": {escaped(current)}"
    titles = {"auto": automatic} | {name: escaped(session.vector_title(name)) for name in session.vectors()}
    controls.choice_list(
        "Acceptance vector",
        titles,
        current if chosen else "auto",
        session.use_vector,
        key="plan_acceptance",
        help="How often the target accepts the draft's first, second, … choice.",
    )
    with st.expander("Use your own numbers", icon=":material/upload_file:", expanded=True, key="plan_vector"):
        vector_input.vector_input()
