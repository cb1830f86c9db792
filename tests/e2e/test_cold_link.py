"""A deep link as a server's first request, redirects of old links, and the load of an idle server."""

import time

import pytest

from tests.e2e.browser import LONG_MS, go, settle
from ui.menu import MENU, OLD_LINKS

IDLE_SEC = 10.0
MAX_IDLE_SHARE = 0.05  # of one core; 0.01 is usual
NOTE_RAW_MENU = """new MutationObserver(() => window.rawMenu ||= document.querySelector("[data-testid=stSidebarNav]"))
    .observe(document, {childList: true, subtree: true})"""


@pytest.mark.timeout(300)
def test_a_deep_link_to_a_new_server_gets_the_whole_menu_and_a_used_server_is_idle(page, own_server) -> None:
    """The file watcher once used a whole core."""
    page.add_init_script(NOTE_RAW_MENU)
    page.goto(f"{own_server.address}/decode?tokens=256")
    settle(page)
    assert not page.evaluate("window.rawMenu"), "before the first script has run, the sidebar lists files"
    menu = page.locator(".st-key-menu")
    assert menu.get_by_role("link").count() == 9
    assert page.title().startswith("Live") and page.url.endswith("/decode?tokens=256")
    go(page, "Start")
    page.get_by_role("button", name="Measure it on this machine").click()
    page.get_by_role("link", name="Watch this run step by step").wait_for(timeout=LONG_MS)
    settle(page)
    time.sleep(2.0)  # caches are filled and files closed after the page is complete
    began = own_server.cpu_sec()
    time.sleep(IDLE_SEC)
    assert own_server.cpu_sec() - began < MAX_IDLE_SHARE * IDLE_SEC
    log = own_server.log.read_text()
    assert "arning" not in log and "rror" not in log, log[-2_000:]
    assert len(log.splitlines()) < 20, log[-2_000:]
    page.close()  # before its server stops, which it would report


@pytest.mark.timeout(300)
def test_an_old_link_redirects_and_keeps_its_parameters(page, server) -> None:
    titles = {entry.script: entry.title for entry in MENU}
    for old, (script, query) in OLD_LINKS.items():
        page.goto(f"{server}/{old}?seed=7")
        settle(page)
        assert page.title().startswith(titles[script]), old
        assert page.get_by_role("dialog").count() == 0, old
        assert page.get_by_role("tab", selected=True).all_inner_texts()[:1] == [*query.values()] or not query, old
