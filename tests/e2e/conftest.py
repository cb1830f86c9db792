"""A real server on a free port and a real browser; without Chromium the tests are skipped and say how to get it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequoia_core.files.safe_files import APP_NAME
from tests.served_app import QUIET, Server

QUICK = (  # prefixes of test names
    "test_the_picture_and_its_controls_are_on_the_first_screen", "test_one_answer_is_written_in_two_ways",
    "test_a_chosen_node", "test_lost_messages", "test_keys_select", "test_the_player",
    "test_a_random_decision", "test_the_bonus_token", "test_on_a_phone_the_tree",
    "test_it_plays_without_a_server", "test_text_of_a_run_never_becomes_markup",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all browser tests but the quick ones as slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.name.startswith(QUICK):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        message = "browser tests need Chromium (Debian, Ubuntu: sudo apt-get install chromium)"
        if os.environ.get("SEQUOIA_BROWSER") == "required":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the app, which keeps nothing from one test for the next, and yield its address."""
    folder = tmp_path_factory.mktemp("server")
    (folder / APP_NAME).mkdir()
    (folder / APP_NAME / "settings.json").write_text('{"limit": 0}')
    server = Server(folder / "log", folder)
    try:
        yield server.address
        assert server.process.poll() is None, f"the server died: {server.log.read_text()}"
    finally:
        server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """Serve the app for one test, which may kill the server."""
    server = Server(tmp_path / "server.log", tmp_path)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def browser(chromium: str) -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=QUIET.split())
        yield browser
        browser.close()


@pytest.fixture
def tabs(browser) -> Iterator[Callable]:
    """Return a function that opens a tab with a new session; script errors fail the test."""
    faults: list[str] = []

    def open_tab(**options):
        tab = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options).new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: faults.append(f"page error: {error}"))
        return tab

    yield open_tab
    assert not faults, "\n".join(faults)


def is_fault(message) -> bool:
    """Return whether a console message is an error, except when Streamlit's client probes for its server."""
    return message.type == "error" and "/_stcore/" not in message.location.get("url", "")


@pytest.fixture
def page(tabs) -> Iterator:
    """Open a tab; console errors and requests to other hosts fail the test."""
    faults: list[str] = []
    page = tabs()
    here = ("http://localhost:", "data:", "blob:", "file:")
    page.on("console", lambda message: faults.append(f"console: {message.text}") if is_fault(message) else None)
    page.on("request", lambda request: None if request.url.startswith(here) else faults.append(request.url))
    yield page
    assert not faults, "\n".join(faults)


@pytest.fixture
def shot(page, tmp_path):
    folder = Path(os.environ.get("SEQUOIA_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        path = folder / f"{name}.png"
        page.screenshot(path=path, full_page=False)
        assert path.stat().st_size > 10_000

    return take
