"""Runs and pages survive a closed tab, a stop, a killed server and a lost connection.

Runs are long because random models and a tree of 1,024 nodes commit about one token per step.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from sequoia_core.trees.plain import branching_tree
from sequoia_core.trees.tree_files import export_tree
from tests.e2e.browser import drawn, in_popover, settle
from tests.e2e.cable import Cable

WAIT_MS = 120_000
NODES = 1_024


@dataclass(frozen=True)
class RandomPair:
    """A pair of random models, and a tree for them."""

    target: str
    draft: str
    tree: Path


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> RandomPair:
    folder = tmp_path_factory.mktemp("noise")
    tree = branching_tree([31, 32])
    assert tree.size == NODES
    export_tree(tree, "native", folder / "tree.json")
    from tests.chat_pair import save_chat_pair  # transformers takes seconds

    # With four layers, a run is still under way after ten seconds offline.
    return RandomPair(*save_chat_pair(folder, template=None, context=4_096, layers=4), folder / "tree.json")


def prepare(tab, address: str, noise: RandomPair, *, tokens: int = 512) -> None:
    """Open the live page and choose the random pair and its tree."""
    tab.goto(f"{address}/?warm=1")
    settle(tab)
    tab.goto(f"{address}/decode?source=Imported+file&tokens={tokens}")
    settle(tab)
    choose(tab, noise)


def choose(tab, noise: RandomPair) -> None:
    """Choose the random pair and its tree on the live page."""
    tab.locator(".st-key-plan_models_open").get_by_test_id("stPopoverButton").first.click()
    tab.get_by_label("Target", exact=True).fill(noise.target)
    tab.get_by_label("Draft", exact=True).fill(noise.draft)
    tab.get_by_role("button", name="Use this pair").click()
    settle(tab)
    tab.keyboard.press("Escape")
    with in_popover(tab, "Settings"):
        tab.locator(".st-key-decode_tree_file input[type=file]").set_input_files(noise.tree)
        tab.get_by_text(f"n = {NODES:,}").first.wait_for()


def start(tab) -> None:
    """Press Start, twice if a busy page redrew the button under the first click."""
    from playwright.sync_api import TimeoutError

    stop = tab.locator(".st-key-decode_stop button:not([disabled])")
    tab.locator(".st-key-decode_start button").click()
    try:
        stop.wait_for(timeout=WAIT_MS / 4)
    except TimeoutError:
        tab.locator(".st-key-decode_start button").click()
        stop.wait_for(timeout=WAIT_MS)


def steps_shown(tab) -> int:
    """Return the number of steps with the random tree that the page shows."""
    if len(drawn(tab)) < NODES:
        return 0
    return int(tab.locator(".st-key-decode_tree .scrub").get_attribute("max")) + 1


def wait_for_steps(tab, count: int) -> None:
    deadline = time.monotonic() + WAIT_MS / 1_000
    while steps_shown(tab) < count:
        assert time.monotonic() < deadline, f"found {steps_shown(tab)} steps, expected {count}"
        tab.wait_for_timeout(100)


STOPPED = re.compile(r"Stopped after \d+ steps")


def stopped_after(tab) -> int:
    """Wait until the run was stopped and return its number of steps."""
    tab.get_by_text(STOPPED).first.wait_for(timeout=WAIT_MS)
    return int(re.search(r"Stopped after (\d+) steps", tab.locator("body").inner_text())[1])


def wait_until_idle(tab) -> None:
    tab.locator(".st-key-decode_stop button[disabled]").wait_for(timeout=WAIT_MS)
    tab.get_by_text("Engine idle").first.wait_for(timeout=WAIT_MS)


@pytest.mark.timeout(600)
def test_a_stop_ends_a_run_and_leaving_the_page_does_not(tabs, server, noise) -> None:
    tab = tabs()
    prepare(tab, server, noise)
    start(tab)
    wait_for_steps(tab, 3)
    tab.locator(".st-key-decode_stop button").click()
    steps = stopped_after(tab)
    wait_until_idle(tab)
    wait_for_steps(tab, steps)  # large steps may arrive in later messages
    assert steps_shown(tab) == steps < 1_000
    tab.locator(".st-key-decode_start button").dblclick()
    tab.get_by_text(STOPPED).first.wait_for(state="hidden")
    wait_for_steps(tab, 3)
    tab.locator(".st-key-menu").get_by_role("link", name="Tree", exact=True).click()
    tab.get_by_role("heading", name="Tree").first.wait_for()
    tab.locator(".st-key-menu").get_by_role("link", name="Live", exact=True).click()
    wait_for_steps(tab, 3)
    assert tab.locator(".st-key-decode_start button").is_disabled()
    tab.locator(".st-key-decode_stop button").click()
    assert 3 <= stopped_after(tab) < 500
    wait_until_idle(tab)  # a second job of the double click would still run


@pytest.mark.timeout(600)
def test_closing_the_tab_ends_its_run_after_two_minutes_and_starts_the_next(tabs, server, noise) -> None:
    first, second = tabs(), tabs()
    prepare(first, server, noise)
    prepare(second, server, noise, tokens=16)
    start(first)
    wait_for_steps(first, 3)
    second.locator(".st-key-decode_start button").click()
    second.get_by_text("This run is number 1 in the queue").wait_for()
    first.close()
    second.get_by_text("This run is number 1 in the queue").wait_for(state="hidden", timeout=WAIT_MS + 20_000)
    wait_for_steps(second, 3)
    wait_until_idle(second)
    assert 3 <= steps_shown(second) <= 16


@pytest.mark.timeout(600)
def test_a_page_works_after_its_server_was_killed_and_restarted(tabs, own_server, noise) -> None:
    tab = tabs()
    prepare(tab, own_server.address, noise)
    start(tab)
    wait_for_steps(tab, 3)
    own_server.stop(kill=True)
    tab.wait_for_selector('[data-testid="stApp"]:not([data-test-connection-state="CONNECTED"])')
    own_server.start()
    settle(tab)
    tab.get_by_text("The link's run is not kept").wait_for()
    tab.get_by_text("Engine idle").first.wait_for()
    assert "run=" not in tab.url
    choose(tab, noise)  # in the same page, without reloading it
    start(tab)
    wait_for_steps(tab, 3)
    assert not tab.get_by_text("The link's run is not kept").count()
    tab.locator(".st-key-decode_stop button").click()
    stopped_after(tab)
    wait_until_idle(tab)


@pytest.mark.timeout(600)
def test_a_client_returns_to_its_run_after_ten_seconds_offline(tabs, server, noise) -> None:
    tab, cable = tabs(), Cable(int(server.rsplit(":", 1)[1]))
    prepare(tab, cable.address, noise, tokens=1_024)
    start(tab)
    wait_for_steps(tab, 3)
    cable.cut()
    tab.wait_for_selector('[data-testid="stApp"]:not([data-test-connection-state="CONNECTED"])')
    tab.wait_for_timeout(10_000)
    seen = steps_shown(tab)
    cable.reconnect()
    settle(tab)
    wait_for_steps(tab, seen + 3)
    tab.locator(".st-key-decode_stop button").click()
    steps = stopped_after(tab)
    wait_until_idle(tab)
    wait_for_steps(tab, steps)
    assert 3 <= steps_shown(tab) == steps < 1_000
    cable.remove()
