"""A run is opened, compared, saved, and linked to by its step."""

from __future__ import annotations

import copy

import pytest

from tests.e2e.browser import go, settle
from tests.served_app import ROOT
from ui.runs.run_files import load_run, run_to_bytes


def with_other_text(run: dict) -> dict:
    """Return a run with another text in its second step."""
    other = copy.deepcopy(run) | {"id": "0" * 12, "temperature": 0.6, "tree_source": "turns"}
    other["steps"][1]["pieces"][0] = "other"
    return other


@pytest.mark.timeout(600)
def test_a_run_is_opened_compared_saved_and_linked(page, server):
    other = with_other_text(load_run(ROOT / "assets" / "runs" / "recorded.jsonl"))
    page.goto(server)
    settle(page)
    page.locator(".st-key-overview_ways").get_by_role("button", name="Pause").wait_for()  # it plays without a click
    go(page, "Race and runs", "Runs")
    file = {"name": "turns.jsonl", "mimeType": "application/json", "buffer": run_to_bytes(other)}
    page.locator(".st-key-runs_file input[type=file]").set_input_files(file)
    page.get_by_text("Two side by side").wait_for()
    settle(page)
    assert page.get_by_text("They part in step 2 of both.").is_visible()

    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the run").click()
    assert saved.value.path().read_bytes() == run_to_bytes(other)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a page").click()
    html = saved.value.path().read_text()
    steps = len(other["steps"])
    tokens = sum(len(step["pieces"]) for step in other["steps"])
    speed = tokens / sum(sum(step["seconds"]) for step in other["steps"])
    assert "<h1>turns.jsonl: " in html and f"<dt>Tokens per second</dt><dd>{speed:.0f}</dd>" in html
    page.get_by_role("link", name="Watch it step by step").click()
    tree = page.locator(".st-key-decode_tree")
    tree.locator(".at").get_by_text(f"step 1 of {steps}").wait_for()
    tree.locator(".tt").press("End")
    tree.get_by_role("button", name="Previous step").click()
    tree.get_by_role("button", name="Link").click()
    assert page.url.endswith(f"?run=000000000000&step={steps - 1}")

    recorded = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")["id"]
    page.goto(f"{server}/decode?run={recorded}&step=5")  # any session can show shipped runs
    settle(page)
    page.locator(".st-key-decode_tree .at").get_by_text(f"step 5 of {steps}").wait_for()
