"""What a run must survive, through a real websocket: a closed tab, a stop, a killed server, a lost connection.

The runs are long because the models are random and the tree has 1,024 nodes: about one token per step.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from sequoia_core.design.plain_trees import branching_tree
from sequoia_core.design.tree_files import export_tree

from .browser import in_popover, settle
from .cable import Cable

WAIT_MS = 120_000
NODES = 1_024


@dataclass(frozen=True)
class Noise:
    """A pair of random models, and a tree for them."""

    target: str
    draft: str
    tree: Path


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Noise:
    folder = tmp_path_factory.mktemp("noise")
    tree = branching_tree([31, 32])
    assert tree.size == NODES
    export_tree(tree, "native", folder / "tree.json")
    from tests.chat_pair import save_chat_pair  # transformers takes seconds

    return Noise(*save_chat_pair(folder, template=None, context=4_096), folder / "tree.json")


def prepare(tab, address: str, noise: Noise, *, tokens: int = 512) -> None:
    """Open the live page with the random pair and its tree."""
    tab.goto(f"{address}/?warm=1")
    settle(tab)
    tab.goto(f"{address}/decode?source=Imported+file&tokens={tokens}")
    settle(tab)
    choose(tab, noise)


def choose(tab, noise: Noise) -> None:
    """Choose the random pair and its tree on the live page, as it is."""
    tab.get_by_role("button", name="Change pair").click()
    tab.get_by_label("Target", exact=True).fill(noise.target)
    tab.get_by_label("Draft", exact=True).fill(noise.draft)
    tab.get_by_role("button", name="Use this pair").click()
    settle(tab)
    tab.keyboard.press("Escape")
    with in_popover(tab, "Settings"):
        tab.locator(".st-key-decode_tree_file input[type=file]").set_input_files(noise.tree)
        tab.get_by_text(f"n = {NODES:,}").first.wait_for()


def start(tab) -> None:
    """Press Start, again where a busy page drew its button anew under the first click."""
    from playwright.sync_api import TimeoutError

    stop = tab.locator(".st-key-decode_stop button:not([disabled])")
    tab.locator(".st-key-decode_start button").click()
    try:
        stop.wait_for(timeout=WAIT_MS / 4)
    except TimeoutError:
        tab.locator(".st-key-decode_start button").click()
        stop.wait_for(timeout=WAIT_MS)


def steps_shown(tab) -> int:
    """Return how many steps the live tree has of our tree; 0 while it shows another one or none."""
    if tab.locator(".tt .nodes .node").count() < NODES:
        return 0
    return int(tab.locator(".tt .scrub").get_attribute("max")) + 1


def wait_for_steps(tab, count: int) -> None:
    deadline = time.monotonic() + WAIT_MS / 1_000
    while steps_shown(tab) < count:
        assert time.monotonic() < deadline, f"found {steps_shown(tab)} steps, expected {count}"
        tab.wait_for_timeout(100)


STOPPED = re.compile(r"Stopped after \d+ steps")


def stopped_after(tab) -> int:
    """Wait until the page says that the run was stopped; return after how many steps."""
    tab.get_by_text(STOPPED).first.wait_for(timeout=WAIT_MS)
    return int(re.search(r"Stopped after (\d+) steps", tab.locator("body").inner_text())[1])


def idle(tab) -> None:
    tab.locator(".st-key-decode_stop button[disabled]").wait_for(timeout=WAIT_MS)
    tab.get_by_text("Engine idle").first.wait_for(timeout=WAIT_MS)


@pytest.mark.timeout(600)
def test_a_stop_ends_real_work_and_leaving_the_page_does_not(tabs, server, noise) -> None:
    tab = tabs()
    prepare(tab, server, noise)
    start(tab)
    wait_for_steps(tab, 3)
    tab.locator(".st-key-decode_stop button").click()
    steps = stopped_after(tab)
    idle(tab)
    wait_for_steps(tab, steps)  # a step of this tree is large: the last ones may come with a message of their own
    assert steps_shown(tab) == steps < 500
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
    idle(tab)  # a second job of the double click would be running now


@pytest.mark.timeout(600)
def test_closing_the_tab_ends_its_run_and_the_next_user_runs(tabs, server, noise) -> None:
    first, second = tabs(), tabs()
    prepare(first, server, noise)
    prepare(second, server, noise, tokens=16)
    start(first)
    wait_for_steps(first, 3)
    second.locator(".st-key-decode_start button").click()
    second.get_by_text("This run is number 1 in line").wait_for()
    first.close()
    second.get_by_text("This run is number 1 in line").wait_for(state="hidden", timeout=20_000)  # its run takes minutes
    wait_for_steps(second, 3)
    idle(second)
    assert 3 <= steps_shown(second) <= 16


@pytest.mark.timeout(600)
def test_a_killed_server_and_its_restart_leave_a_page_that_works(tabs, own_server, noise) -> None:
    tab = tabs()
    prepare(tab, own_server.address, noise)
    start(tab)
    wait_for_steps(tab, 3)
    own_server.stop(kill=True)
    tab.wait_for_selector('[data-testid="stApp"]:not([data-test-connection-state="CONNECTED"])')
    own_server.start()
    settle(tab)
    tab.get_by_text("The run that this page showed was stopped").wait_for()
    tab.get_by_text("Engine idle").first.wait_for()
    assert "run=" not in tab.url
    choose(tab, noise)  # and not opened anew: the page that was there must work
    start(tab)
    wait_for_steps(tab, 3)
    assert not tab.get_by_text("The run that this page showed was stopped").count()
    tab.locator(".st-key-decode_stop button").click()
    stopped_after(tab)
    idle(tab)


@pytest.mark.timeout(600)
def test_a_client_offline_for_ten_seconds_comes_back_to_its_stopped_run(tabs, server, noise) -> None:
    tab, cable = tabs(), Cable(int(server.rsplit(":", 1)[1]))
    prepare(tab, cable.address, noise)
    start(tab)
    wait_for_steps(tab, 3)
    cable.cut()
    tab.wait_for_selector('[data-testid="stApp"]:not([data-test-connection-state="CONNECTED"])')
    tab.wait_for_timeout(10_000)
    cable.mend()
    settle(tab)
    steps = stopped_after(tab)
    idle(tab)
    wait_for_steps(tab, steps)
    assert 3 <= steps_shown(tab) == steps < 500
    cable.remove()
