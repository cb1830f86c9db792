"""What a run must survive, through a real websocket: a closed tab, a stop, a killed server, a lost connection.

The runs are long because the models are random and the tree has 1,024 nodes: about one token per step.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.served_app import ROOT

from .browser import heap_mb, in_popover, settle
from .cable import Cable

WAIT_MS = 120_000
NODES = 1_024


@dataclass(frozen=True)
class Noise:
    """A pair of random models that share the demo pair's tokenizer, and a tree for them."""

    target: Path
    draft: Path
    tree: Path


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Noise:
    import torch
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    from sequoia_core.design.plain_trees import branching_tree
    from sequoia_core.design.tree_files import export_tree

    folder, demo = tmp_path_factory.mktemp("noise"), ROOT / "assets" / "demo" / "target"
    vocabulary = AutoConfig.from_pretrained(demo).vocab_size
    for seed, name in enumerate(("target", "draft")):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocabulary, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=4_096, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder / name)
        for file in demo.glob("tokenizer*"):
            shutil.copy(file, folder / name)
    tree = branching_tree([31, 32])
    assert tree.size == NODES
    export_tree(tree, "native", folder / "tree.json")
    return Noise(folder / "target", folder / "draft", folder / "tree.json")


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
    tab.get_by_label("Target", exact=True).fill(str(noise.target))
    tab.get_by_label("Draft", exact=True).fill(str(noise.draft))
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
ENDED = re.compile("Ended at the number of tokens asked for")


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


@pytest.mark.timeout(2_400)
def test_500_steps_of_1024_nodes_pictures_on_one_node_and_memory_that_stays(tabs, own_server, noise) -> None:
    """The tree's own elements stay where they are while steps arrive, and no run adds to what earlier ones took."""
    tab = tabs()
    prepare(tab, own_server.address, noise)

    def server_mb() -> float:
        status = Path(f"/proc/{own_server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1_024

    taken = []
    for run in range(5):  # the session keeps two runs of this size, so the first ones add what the later ones do not
        start(tab)
        if run:
            tab.get_by_text(ENDED).first.wait_for(state="hidden")
        wait_for_steps(tab, 1)
        tab.locator(".tt .nodes .node").first.evaluate("node => { node.tagged = true }")
        seen = set()
        while tab.locator(".st-key-decode_stop button:not([disabled])").count():
            tab.wait_for_timeout(50)
            seen.add(tab.locator(".tt .at").inner_text())
        idle(tab)
        wait_for_steps(tab, 490)  # however fast the engine was, nothing is left out once it has ended
        assert len(seen) > 3, f"found only {sorted(seen)}"  # how many there are depends on how long the engine takes
        assert tab.locator(".tt .nodes .node").first.evaluate("node => node.tagged === true")
        taken.append((server_mb(), heap_mb(tab)))
        print(f"run {run}: {len(seen)} pictures, {steps_shown(tab)} steps, server and page {taken[-1]} MB", flush=True)
    # What a run leaves behind is left by every run: one jump between two runs is memory the allocator keeps for reuse.
    server_growth, page_growth = (min(b - a for a, b in pairwise(column)) for column in zip(*taken, strict=True))
    assert server_growth < 40 and page_growth < 30, taken
