"""The Start page: an answer decoded with and without a tree, links, and a button that measures everything."""

import streamlit as st

from ui import controls, menu, page_setup
from ui.jobs import job_panel, session_jobs
from ui.overview import chain, recent
from ui.session import session

DOORS = (
    ("decode", "Watch one", ":material/play_circle:", "Your prompt, guess by guess."),
    ("models", "My models", ":material/hub:", "Which tree suits them best?"),
    ("server", "My server", ":material/dns:", "Which draft length is best?"),
)


def doors() -> None:
    """Draw links to the pages to visit next."""
    doors = [door for door in DOORS if menu.has_page(door[0])]
    for column, (page, title, icon, words) in zip(st.columns(len(doors)), doors, strict=True):
        with column.container(border=True, height="stretch"):
            controls.page_link(st.container(), page, title, icon)
            st.caption(words)


page_setup.setup_page("Start", follows="chain")
job = session_jobs.find_job("chain")
running = job_panel.is_active("chain")
st.title("The same text in fewer passes")
st.caption("Speculative decoding with token trees")
st.fragment(chain.draw_stage, run_every=job_panel.JOB_POLL_SEC if running else None)(running)
if job is not None and job.state == "done":
    chain.draw_result(job.result)
if not running:
    lacks_draft = controls.warn_without_draft("Measuring")
    timed = session.pair_spec().is_demo and session.pair_spec().offload is None and not lacks_draft
    with st.container(horizontal=True, vertical_alignment="center"):
        start = controls.primary_button(
            f"Measure it on this machine{' (about 30 s)' if timed else ''}",
            icon=":material/rocket_launch:",
            key="chain_start",
            disabled=lacks_draft,
            help="Times this machine, counts accepted guesses until the best tree is known (for at most 15 seconds), "
            "and decodes with and without that tree.",
        )
    if start:
        chain.start_chain()
    doors()
    recent.draw_recent()
menu.draw_next_link("Start")
