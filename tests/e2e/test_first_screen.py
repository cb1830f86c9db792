"""Each design page shows its picture where it opens: on the first screen, beside what changes it."""

import pytest

from tests.served_app import ROOT
from ui.runs.run_files import load_run

from .browser import settle


@pytest.mark.timeout(600)
def test_the_picture_and_its_controls_are_on_the_first_screen(page, server) -> None:
    page.goto(f"{server}/?warm=1")  # the app itself first: a cold deep link makes Streamlit look for files that are not
    settle(page)
    page.goto(f"{server}/tree")
    settle(page)
    page.locator(".st-key-tree_picture .js-plotly-plot .main-svg").first.wait_for()
    box = page.locator(".st-key-tree_picture .js-plotly-plot").bounding_box()
    assert box["height"] >= 300 and box["y"] + 0.75 * box["height"] <= 900 and box["x"] + box["width"] <= 1_280
    for key in ("vector", "n", "n_slider", "depth", "tree_best", "tree_hide", "tree_node"):
        place = page.locator(f".st-key-{key}").bounding_box()
        assert place["y"] >= 0 and place["y"] + place["height"] <= 900, (key, place)


@pytest.mark.timeout(300)
def test_one_answer_is_written_in_two_ways(page, server) -> None:
    page.goto(server)
    settle(page)
    ways = page.locator(".two-ways")
    assert ways.get_by_role("button", name="Pause").is_visible()  # it plays before any click
    for part in (ways, page.locator(".st-key-chain_start")):
        box = part.bounding_box()
        assert box["y"] + box["height"] <= page.viewport_size["height"]
    ways.get_by_role("button", name="Pause").click()
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    speedup = run["baseline"]["seconds"] / sum(sum(step["seconds"]) for step in run["steps"])
    assert ways.locator(".plain .figure").inner_text() == "1 token a pass"
    found = f"{128 / len(run['steps']):.1f} tokens a pass, {speedup:.2f}× as fast, same text"
    assert ways.locator(".drafted .figure").inner_text() == found
    ways.press("End")
    typed = [ways.locator(f".{way} .body").text_content() for way in ("plain", "drafted")]
    assert typed == [run["text"]] * 2
    assert ways.locator(".plain .passes").inner_text() == "128 passes for 128 tokens"
    assert ways.locator(".drafted .passes").inner_text() == f"{len(run['steps'])} passes for 128 tokens"
    first = run["steps"][0]
    ways.press("Home")
    ways.press("ArrowRight")
    assert ways.locator(".drafted .body").text_content() == "".join(first["pieces"])
    assert ways.locator(".plain .passes").inner_text() == "1 pass for 1 token"


@pytest.mark.timeout(300)
def test_the_tree_and_the_pace_follow_the_quality_of_the_draft(page, server) -> None:
    page.goto(server)
    settle(page)
    ways = page.locator(".two-ways")
    slider, said = ways.locator(".draft"), ways.locator(".promise")
    assert "predicted" not in said.inner_text() and "Recorded on" in ways.locator(".origin").inner_text()
    recorded = ways.locator(".nodes .node").count()
    rates = []
    for value in ("0", slider.get_attribute("max")):
        slider.fill(value)
        assert "predicted" in said.inner_text()
        rates.append(float(said.inner_text().split("pass, ")[1].split("×")[0]))
        assert ways.locator(".nodes .node").count() > 2
    assert rates[0] < 4 < rates[1]
    ways.get_by_role("button", name="Back to the recorded run").click()
    assert "predicted" not in said.inner_text() and ways.locator(".nodes .node").count() == recorded
