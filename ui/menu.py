"""The pages in the order in which one works: the router's list, the menu in the sidebar, and where old links lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from ui import controls

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage

_CLOSES = st.components.v2.component("sequoia_menu", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))


class Entry(NamedTuple):
    """One page: its section of the menu, its script in `pages/`, what it is called, the question that it answers."""

    section: str
    script: str
    title: str
    icon: str
    question: str


MENU = (
    Entry("", "overview", "Start", ":material/home:", "What does speculative decoding with a tree of guesses do?"),
    Entry("Plan", "draft", "Draft", ":material/checklist:", "How often is a draft right, and which draft pays?"),
    Entry("Plan", "tree", "Tree", ":material/account_tree:", "Which guesses are worth a place in one target pass?"),
    Entry("Plan", "machine", "Machine", ":material/memory:", "What does a pass cost here, and which shape is fastest?"),
    Entry("Watch", "decode", "Live", ":material/play_circle:", "Does the prediction hold? Watch a run step by step."),
    Entry("Watch", "race", "Race and runs", ":material/flag:", "Which way of decoding is fastest here?"),
    Entry("Server", "server", "My server", ":material/dns:", "Which draft length pays on a server, by its counts?"),
    Entry("Evidence", "exact", "Is it exact?", ":material/verified:", "Is the output the target's own, and who wins?"),
)
OLD_LINKS: dict[str, tuple[str, dict[str, str]]] = {  # path -> script, and the part of it
    "overview": ("overview", {}),
    "acceptance": ("draft", {}),
    "lookup": ("draft", {"draft_section": "No draft"}),
    "compare": ("draft", {"draft_section": "Which draft?"}),
    "hardware": ("machine", {}),
    "regret": ("tree", {"tree_section": "One tree for all?"}),
    "runs": ("race", {"race_section": "Runs"}),
    "robustness": ("exact", {}),
}


def navigation() -> StreamlitPage:
    """Tell the router which pages there are -> the one that the link names."""
    pages = [
        st.Page(
            f"pages/{page.script}.py",
            title=page.title,
            icon=page.icon,
            url_path="start" if page is MENU[0] else None,  # its file's name is an old link
            default=page is MENU[0],
        )
        for page in MENU
    ]
    old = [st.Page(_leads_to(*place), title=path, url_path=path) for path, place in OLD_LINKS.items()]
    return st.navigation([*pages, *old], position="hidden")


def _leads_to(script: str, part: dict[str, str]) -> Callable[[], None]:
    def switch() -> None:
        given = {name: st.query_params.get_all(name) for name in st.query_params}
        st.switch_page(f"pages/{script}.py", query_params={**part, **given})

    return switch


def draw() -> None:
    """Draw the menu; Streamlit's own folds a section away when its heading is clicked."""
    with st.container(key="menu", gap="xxsmall"):
        section = ""
        for page in MENU:
            if page.section != section:
                section = page.section
                st.caption(section)
            controls.page_link(st, page.script, page.title, page.icon)
        _CLOSES(key="menu_closes", height=0)


def draw_next(title: str) -> None:
    """Draw the link to the page that follows the one of that title."""
    titles = [page.title for page in MENU]
    following = MENU[(titles.index(title) + 1) % len(MENU)]
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", key="next_page"):
        controls.page_link(st, following.script, f"Next: {following.title}", following.icon)
        st.caption(following.question)
