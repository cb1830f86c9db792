"""A link to one page as the first request that a server gets."""

from __future__ import annotations

from .browser import settle
from .conftest import Server


def test_the_first_page_of_a_cold_server_has_the_whole_menu(page, tmp_path) -> None:
    server = Server(tmp_path / "log")
    try:
        page.goto(f"{server.address}/decode?tokens=256")
        settle(page)
        menu = page.get_by_test_id("stSidebarNav")
        assert menu.get_by_role("link", name="Overview", exact=True).is_visible()
        assert menu.get_by_role("link").count() == 12
        assert page.title().startswith("Decode") and page.url.endswith("/decode?tokens=256")
        assert page.get_by_role("slider", name="New tokens").get_attribute("aria-valuetext") == "256"
    finally:
        page.close()  # before its server goes: it would report that
        server.stop()
