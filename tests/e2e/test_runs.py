"""The journey of a run: opened, compared, saved as a page that plays from disk, and linked to by its step."""

from __future__ import annotations

import copy

import pytest

from tests.served_app import ROOT
from ui.runs.run_files import load_run, run_to_bytes

from .browser import go, metric, settle


def shorter(run: dict) -> dict:
    """The same run as if a chain of three had been used for every other step, with other text there."""
    other = copy.deepcopy(run)
    other |= {"id": "0" * 12, "temperature": 0.6, "tree_source": "turns", "shapes": [*run["shapes"], [-1, 0, 1, 2]]}
    for step in other["steps"][1::2]:
        kept = min(len(step["path"]), 4)
        step |= {"shape": 1, "path": list(range(kept)), "outcomes": "A" * kept + "N" * (4 - kept), "trials": []}
        step |= {name: step[name][:4] for name in ("tokens", "draft", "target")}
        step.pop("rows", None)
        step["pieces"] = [*step["pieces"][:kept][:-1], step["pieces"][-1]]
        step["bonus"] = step["pieces"][-1] if len(step["pieces"]) == kept else None
    return other


@pytest.mark.timeout(600)
def test_open_compare_save_and_link(page, server, tmp_path):
    other = shorter(load_run(ROOT / "assets" / "runs" / "recorded.jsonl"))
    page.goto(server)
    settle(page)
    page.locator(".st-key-overview_ways").get_by_role("button", name="Pause").wait_for()  # it plays before any click
    go(page, "Race and runs", "Runs")
    file = {"name": "turns.jsonl", "mimeType": "application/json", "buffer": run_to_bytes(other)}
    page.locator(".st-key-runs_file input[type=file]").set_input_files(file)
    page.get_by_text("Two side by side").wait_for()
    settle(page)
    assert metric(page, "Tokens per step") and page.get_by_text("characters. The first parts in step").is_visible()

    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the run").click()
    assert saved.value.path().read_bytes() == run_to_bytes(other)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a page").click()
    saved.value.save_as(tmp_path / "run.html")

    page.get_by_role("link", name="Watch it step by step").click()
    tree = page.locator(".st-key-decode_tree")
    tree.locator(".at").get_by_text("step 1 of 24").wait_for()  # it plays by itself
    tree.locator(".tt").press("End")
    tree.locator(".tt").evaluate("root => (root.dataset.tag = 'kept')")
    for nodes in (32, 4, 32):
        tree.get_by_role("button", name="Previous step").click()
        assert tree.locator(".nodes .node:not(.bonus)").count() == nodes
    assert tree.locator(".tt").get_attribute("data-tag") == "kept"
    tree.get_by_role("button", name="Link").click()
    assert page.url.endswith("?run=000000000000&step=21")

    recorded = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")["id"]
    page.goto(f"{server}/decode?run={recorded}&step=5")  # what ships can be linked to from anywhere
    settle(page)
    page.locator(".st-key-decode_tree .at").get_by_text("step 5 of 24").wait_for()

    page.context.set_offline(True)
    page.goto((tmp_path / "run.html").as_uri())
    assert page.locator(".at").inner_text() == "step 24 of 24" and "turns" in page.locator("h1").inner_text()
