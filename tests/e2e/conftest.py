"""A real server on a free port and a real browser; without Chromium the tests are skipped and say how to get it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.served_app import QUIET, Server

QUICK = (  # how their names begin
    "test_the_picture_and_its_controls_are_on_the_first_screen", "test_one_answer_is_written_in_two_ways",
    "test_a_node_keeps_its_element", "test_what_a_busy_server_lost", "test_keys_go_from_step", "test_one_transport",
    "test_a_decision_by_chance", "test_each_node_says", "test_the_bonus_token", "test_on_a_phone_the_tree",
    "test_it_plays_without_a_server", "test_text_of_a_run_never_becomes_markup",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave other browser tests than the quick ones to `SLOW=1`."""
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
    """Serve the app; yields its address."""
    server = Server(tmp_path_factory.mktemp("server") / "log")
    try:
        yield server.address
        assert server.process.poll() is None, f"the server died: {server.log.read_text()}"
    finally:
        server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """Serve the app for one test alone, which may kill it."""
    server = Server(tmp_path / "server.log")
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
    """Return what opens a browser tab with a session of its own, which fails the test on errors of its script."""
    faults: list[str] = []

    def open_tab():
        tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: faults.append(f"page error: {error}"))
        return tab

    yield open_tab
    assert not faults, "\n".join(faults)


def is_fault(message) -> bool:
    """Whether a console message is an error of ours: on a deep link Streamlit's own client probes for its server."""
    return message.type == "error" and "/_stcore/" not in message.location.get("url", "")


@pytest.fixture
def page(tabs) -> Iterator:
    """A tab that fails the test on console errors and requests to anywhere else, too: it loses no connection."""
    faults: list[str] = []
    page, here = tabs(), ("http://localhost:", "data:", "blob:", "file:")
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
