"""What every page begins with: its title, the results of finished jobs taken over, and the sidebar."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from ui import finished_jobs, menu, sidebar

FAVICON = str(Path(__file__).with_name("icon.svg"))


def setup_page(title: str, *, follows: str = "") -> None:
    """Set the page's title and draw the sidebar; the first call of every page, so that each works from a cold link.

    Args:
        follows: the job that the page itself always follows to its end; the sidebar then does not.
    """
    # a Material favicon would be fetched from a font server: our own keeps the app free of outside requests
    st.set_page_config(page_title=f"{title} · Sequoia Studio", page_icon=FAVICON, layout="wide")
    if PagesManager.uses_pages_directory:  # a cold server runs the page that a link names without the router
        st.navigation(menu.pages())
        st.rerun()
    finished_jobs.adopt_finished_jobs()
    sidebar.draw(follows)
