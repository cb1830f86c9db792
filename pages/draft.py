"""Draft: how often is it right, would repeated text do without one, and which draft pays?"""

import streamlit as st

from ui import controls, menu, page_setup
from ui.draft import acceptance, comparison, replay

FOLLOWED = {"No draft": "replay", "Which draft?": "sweep"}

page_setup.setup_page("Draft", follows=FOLLOWED.get(controls.chosen_section("draft_section"), ""))
st.title("Draft")
controls.sections(
    {"Acceptance": acceptance.section, "No draft": replay.section, "Which draft?": comparison.section},
    key="draft_section",
)
menu.draw_next("Draft")
