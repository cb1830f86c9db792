"""A link to one page as the first request that a server gets."""

import pytest

from ui.menu import MENU, OLD_LINKS

from .browser import settle
from .conftest import Server


def test_the_first_page_of_a_cold_server_has_the_whole_menu(page, tmp_path) -> None:
    server = Server(tmp_path / "log")
    try:
        page.goto(f"{server.address}/decode?tokens=256")
        settle(page)
        menu = page.locator(".st-key-menu")
        assert menu.get_by_role("link", name="Start", exact=True).is_visible()
        assert menu.get_by_role("link").count() == 8
        assert page.title().startswith("Live") and page.url.endswith("/decode?tokens=256")
    finally:
        page.close()  # before its server goes: it would report that
        server.stop()


@pytest.mark.timeout(300)
def test_an_old_link_leads_to_the_new_place_and_keeps_what_it_says(page, server) -> None:
    titles = {entry.script: entry.title for entry in MENU}
    for old, (script, part) in OLD_LINKS.items():
        page.goto(f"{server}/{old}?seed=7")
        settle(page)
        assert page.title().startswith(titles[script]), old
        assert page.get_by_role("dialog").count() == 0, old
        assert page.get_by_role("tab", selected=True).all_inner_texts()[:1] == [*part.values()] or not part, old
