"""The Draft page: acceptance rates, lookup without a draft, and a comparison of drafts."""

import streamlit as st

from sequoia_core.files.extras import has
from ui import controls, menu, page_setup
from ui.draft import acceptance
from ui.session import model_pairs

FOLLOWED = {"No draft": "replay", "Which draft?": "sweep"}


def draw_which_draft() -> None:
    """Draw the comparison of drafts."""
    model_pairs.import_transformers()
    from ui.draft import sweep_comparison

    sweep_comparison.which_draft_section()


page_setup.setup_page("Draft", follows=FOLLOWED.get(controls.open_tab("draft_section"), ""))
st.title("Draft")
parts = {"Acceptance": acceptance.acceptance_section}
if has("dynamic_trees"):
    from ui.draft import replay

    parts["No draft"] = replay.replay_section
if has("sweeps"):
    parts["Which draft?"] = draw_which_draft
controls.draw_tabs(parts, key="draft_section")
menu.draw_next_link("Draft")
