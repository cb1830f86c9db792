"""Start: one answer written in two ways, three doors, and one button that runs the whole chain on the model pair."""

import streamlit as st

from ui import controls, menu, page_setup
from ui.jobs import job_panel, session_jobs
from ui.measuring import state_chip
from ui.overview import chain
from ui.session import session

DOORS = (
    ("decode", "Watch one", ":material/play_circle:", "Your prompt, guess by guess."),
    ("draft", "My models", ":material/checklist:", "Which tree is best for them?"),
    ("server", "My server", ":material/dns:", "How many guesses pay on it?"),
)


def doors() -> None:
    """Offer the three ways on from here."""
    places = st.columns(3)
    for place, page, title, icon, words in zip(places, *zip(*DOORS, strict=True), strict=True):
        with place.container(border=True, height="stretch"):
            controls.page_link(st.container(), page, title, icon)
            st.caption(words)


page_setup.setup_page("Start", follows="chain")
job, running = session_jobs.job("chain"), job_panel.is_active("chain")
st.title("The same text in fewer passes")
st.caption("Speculative decoding with token trees")
st.fragment(chain.draw_stage, run_every=job_panel.POLL_SEC if running else None)(running)
if job is not None and job.state == "done":
    chain.draw_result(job.result)
if not running:
    lacks_draft = controls.lacks_draft("Measuring")
    timed = session.pair_spec().is_demo and session.pair_spec().offload is None and not lacks_draft
    with st.container(horizontal=True, vertical_alignment="center"):
        start = controls.primary_button(
            f"Measure it on this machine{' (about 30 s)' if timed else ''}",
            icon=":material/rocket_launch:",
            key="chain_start",
            disabled=lacks_draft,
            help="Times this machine, counts right guesses until the best tree is settled (for at most 15 seconds), "
            "and decodes with that tree and without it.",
        )
        state_chip.draw(measures=False)
    if start:
        chain.start()
    doors()
menu.draw_next("Start")
