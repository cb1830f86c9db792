"""The setup of every page: title, sanitised link, results of finished jobs, sidebar and plan bar."""

import math
from pathlib import Path

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner_utils.script_run_context import get_script_run_ctx

from ui import menu, sidebar
from ui.jobs import finished_jobs, session_jobs
from ui.measuring import pass_check
from ui.plan import bar, link

FAVICON = str(Path(__file__).with_name("icon.svg"))
STYLES = Path(__file__).with_name("app.css")
SIDEBAR_WIDTH = 200  # in pixels; Streamlit accepts no less
MAX_LINKED = 200  # number of characters; the longest value that pages write into URLs is a run's title


def setup_page(title: str, *, follows: str = "") -> None:
    """Set up a page; every page calls this first, because it may be the first page of a session.

    `follows` names the job whose progress the page shows itself, so the sidebar does not show it.
    """
    # The favicon is a file, because a Material icon would be fetched from a font server.
    name = f"{title} · Sequoia Studio"
    st.set_page_config(name, FAVICON, layout="wide", initial_sidebar_state=SIDEBAR_WIDTH)
    st.logo(FAVICON)
    st.html(STYLES)
    if PagesManager.uses_pages_directory:  # a server that just started runs the linked page without the router
        menu.navigation()
        st.rerun()
    _drop_junk_from_link()
    session_jobs.resume_session()
    link.read_link()
    finished_jobs.adopt_finished_jobs()
    pass_check.start_check()
    sidebar.draw_sidebar(follows)
    bar.draw_plan_bar(measures=title not in ("Start", "My models"))  # which have their own buttons


def _drop_junk_from_link() -> None:
    """Remove parameters that no page writes, before any widget reads them.

    Widgets bound to a parameter read an empty value as "nothing selected" even if a value is required, and overflow on
    infinite numbers. Bound parameters can only be changed through Streamlit's own context.
    """
    junk = [name for name in st.query_params if not all(_is_plausible(name, v) for v in st.query_params.get_all(name))]
    context = get_script_run_ctx()
    if junk and context is not None:
        with context.session_state.query_params() as link:
            for name in junk:
                link.remove_param(name)
            link.set_initial_query_params_from_current()


def _is_plausible(name: str, value: str) -> bool:
    if not value.strip() or len(value) > MAX_LINKED:
        return False
    if name in ("run", "plan"):  # a hexadecimal id such as 12e345678901 looks like a number
        return True
    try:
        return math.isfinite(float(value))
    except ValueError:
        return True
