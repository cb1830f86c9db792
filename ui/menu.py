"""The pages: the router's list, the sidebar's menu, and redirects from old links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from sequoia_core.files.extras import has
from ui import controls

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage

_CLOSES = st.components.v2.component("sequoia_menu", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))


class Entry(NamedTuple):
    """A page: its menu section, script in `pages/`, title, icon, and the question it answers.

    If a page `needs` an optional package that is not installed, it is omitted.
    """

    section: str
    script: str
    title: str
    icon: str
    question: str
    needs: str = ""


PAGES = (
    Entry("", "overview", "Start", ":material/home:", "What does speculative decoding with a tree of guesses do?"),
    Entry("Plan", "models", "My models", ":material/hub:", "Which tree suits my own models, and does it pay?"),
    Entry("Plan", "draft", "Draft", ":material/checklist:", "How often is a draft right, and which draft is best?"),
    Entry("Plan", "tree", "Tree", ":material/account_tree:", "Which guesses are worth verifying in one target pass?"),
    Entry("Plan", "machine", "Machine", ":material/memory:", "What does a pass cost here, and which shape is fastest?"),
    Entry("Watch", "decode", "Live", ":material/play_circle:", "Does the prediction hold? Watch a run step by step."),
    Entry("Watch", "race", "Race and runs", ":material/flag:", "Which decoding method is fastest here?"),
    Entry(
        "Server",
        "server",
        "My server",
        ":material/dns:",
        "Which draft length is best for a server, given its metrics?",
        needs="servers",
    ),
    Entry(
        "Evidence",
        "exact",
        "Is it exact?",
        ":material/verified:",
        "Is the output exactly the target's, and which method wins?",
        needs="evaluation",
    ),
)
MENU = tuple(page for page in PAGES if not page.needs or has(page.needs))
OLD_LINKS: dict[str, tuple[str, dict[str, str]]] = {  # path: (script, query)
    "overview": ("overview", {}),
    "acceptance": ("draft", {}),
    "lookup": ("draft", {"draft_section": "No draft"}),
    "compare": ("draft", {"draft_section": "Which draft?"}),
    "hardware": ("machine", {}),
    "regret": ("tree", {"tree_section": "One tree for all?"}),
    "runs": ("race", {"race_section": "Runs"}),
    "robustness": ("exact", {}),
} | {page.script: (page.script, {}) for page in PAGES if page not in MENU}


def navigation() -> StreamlitPage:
    """Register the pages and redirects, and return the page that the link names."""
    pages = [
        st.Page(
            f"pages/{page.script}.py",
            title=page.title,
            icon=page.icon,
            url_path="start" if page is MENU[0] else None,  # the script's name is the path of an old link
            default=page is MENU[0],
        )
        for page in MENU
    ]
    old = [st.Page(_redirect_to(*target), title=path, url_path=path) for path, target in OLD_LINKS.items()]
    return st.navigation([*pages, *old], position="hidden")


def has_page(script: str) -> bool:
    """Return whether the menu contains the page with this script."""
    return any(page.script == script for page in MENU)


def _redirect_to(script: str, query: dict[str, str]) -> Callable[[], None]:
    """Return a page that redirects to another one, or to the first page if that one is omitted."""
    if not has_page(script):
        script = MENU[0].script
        query = {}

    def switch() -> None:
        given = {name: st.query_params.get_all(name) for name in st.query_params}
        st.switch_page(f"pages/{script}.py", query_params={**query, **given})

    return switch


def draw_menu() -> None:
    """Draw the menu, replacing Streamlit's, in which clicking a heading folds its section."""
    with st.container(key="menu", gap="xxsmall"):
        section = ""
        for page in MENU:
            if page.section != section:
                section = page.section
                st.caption(section)
            controls.page_link(st, page.script, page.title, page.icon)
        _CLOSES(key="menu_closes", height=0)


def draw_next_link(title: str) -> None:
    """Draw a link to the page that follows the one with this title."""
    titles = [page.title for page in MENU]
    following = MENU[(titles.index(title) + 1) % len(MENU)]
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", key="next_page"):
        controls.page_link(st, following.script, f"Next: {following.title}", following.icon)
        st.caption(following.question)
