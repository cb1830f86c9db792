"""What every page begins with: its title, a link that can be read, finished jobs taken over, and the sidebar."""

import math
from pathlib import Path

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner_utils.script_run_context import get_script_run_ctx

from ui import menu, sidebar
from ui.jobs import finished_jobs

FAVICON = str(Path(__file__).with_name("icon.svg"))
MAX_LINKED = 200  # characters; the longest value that a page writes into its link is the title of a run


def setup_page(title: str, *, follows: str = "") -> None:
    """Set the page's title and draw the sidebar; the first call of every page, so that each works from a cold link.

    `follows` is the job that the page itself always follows to its end; the sidebar then does not.
    """
    # a Material favicon would be fetched from a font server: our own keeps the app free of outside requests
    st.set_page_config(page_title=f"{title} · Sequoia Studio", page_icon=FAVICON, layout="wide")
    if PagesManager.uses_pages_directory:  # a cold server runs the page that a link names without the router
        menu.navigation()
        st.rerun()
    _drop_junk_from_link()
    finished_jobs.adopt_finished_jobs()
    sidebar.draw(follows)


def _drop_junk_from_link() -> None:
    """Remove from the link what no page writes, before any widget reads it.

    A widget that is bound to a parameter takes an empty value for "nothing chosen", even where a choice is required,
    and overflows on infinite numbers. Streamlit lets only itself change what a widget is bound to, hence its context.
    """
    junk = [name for name in st.query_params if not all(_may_be_ours(name, v) for v in st.query_params.get_all(name))]
    context = get_script_run_ctx()
    if junk and context is not None:
        with context.session_state.query_params() as link:
            for name in junk:
                link.remove_param(name)
            link.set_initial_query_params_from_current()


def _may_be_ours(name: str, value: str) -> bool:
    if not value.strip() or len(value) > MAX_LINKED:
        return False
    if name == "run":  # the hexadecimal digits of an id may read as 12e345678901
        return True
    try:
        return math.isfinite(float(value))
    except ValueError:
        return True
