"""The sidebar on every page: the menu, the glossary and the engine's status."""

import streamlit as st

from ui import glossary, menu
from ui.jobs import session_jobs
from ui.markdown import escaped

SIDEBAR_POLL_SEC = 3.0


def draw_sidebar(followed: str = "") -> None:
    """Draw the sidebar, including the active job's progress unless the page shows it itself (`followed`)."""
    with st.sidebar:
        menu.draw_menu()
        glossary.draw_glossary()
        current = session_jobs.current_job()
        active = current is not None and current.active
        if current is not None and current.active and current is session_jobs.find_job(followed):
            st.caption(f":material/sync: {escaped(current.label)}: see this page")
        else:
            st.fragment(_job_state, run_every=SIDEBAR_POLL_SEC if active else None)(active)


def _job_state(was_active: bool) -> None:
    current = session_jobs.current_job()
    if current is not None and current.active:
        queued = f", number {current.position} in the queue" if current.position else ""
        st.progress(current.fraction, text=f":material/sync: {current.label}{queued}")
        return
    if was_active:
        st.rerun()  # rerun so that the page shows the result or error
    if current is not None and current.state == "failed":
        st.caption(f":red[:material/error: {escaped(current.label)} failed]", help=escaped(current.error or ""))
    else:
        st.caption(":material/check_circle: Engine idle")
