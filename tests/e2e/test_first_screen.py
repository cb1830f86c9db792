"""The tree page and the start page show their picture and controls on the first screen."""

import pytest

from tests.e2e.browser import drawn, settle
from tests.served_app import ROOT
from ui.runs.run_files import load_run


def warned(page) -> float:
    """Return the height of the plan bar's warning; 0 without one, as on an idle machine."""
    return sum(warning.bounding_box()["height"] + 12 for warning in page.locator(".st-key-plan_problem").all())


@pytest.mark.timeout(600)
def test_the_picture_and_its_controls_are_on_the_first_screen(page, server) -> None:
    page.set_viewport_size({"width": 1_280, "height": 800})
    page.goto(f"{server}/?warm=1")  # a cold deep link makes Streamlit request files that do not exist
    settle(page)
    for path, keys in (("tree", ("n", "n_slider", "depth")), ("decode", ("decode_start", "decode_tree"))):
        page.goto(f"{server}/{path}")
        settle(page)
        page.locator(".field[aria-label*=nodes]").wait_for()
        stage = page.locator(".scene").first.bounding_box()
        assert stage["height"] >= 0.7 * 800 and stage["y"] + stage["height"] <= 800 + warned(page), path
        for key in ("plan_bar", *keys):
            box = page.locator(f".st-key-{key}").bounding_box()
            assert 0 <= box["y"] < stage["y"], (key, box)


@pytest.mark.timeout(300)
def test_one_answer_is_written_in_two_ways(page, server) -> None:
    page.goto(server)
    settle(page)
    ways = page.locator(".two-ways")
    assert ways.get_by_role("button", name="Pause").is_visible()  # it plays without a click
    for part in (ways, page.locator(".st-key-chain_start")):
        box = part.bounding_box()
        assert box["y"] + box["height"] <= page.viewport_size["height"] + warned(page)
    ways.get_by_role("button", name="Pause").click()
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    speedup = run["baseline"]["seconds"] / sum(sum(step["seconds"]) for step in run["steps"])
    tokens = sum(len(step["pieces"]) for step in run["steps"])
    found = f"{tokens / len(run['steps']):.1f} tokens per pass, {speedup:.2f}× as fast on this prompt"
    assert ways.locator(".drafted .figure").inner_text() == found
    ways.press("End")
    typed = [ways.locator(f".{way} .body").text_content() for way in ("plain", "drafted")]
    assert typed == [run["text"]] * 2
    assert ways.locator(".plain .prompt").text_content().strip() == "How do plants make food?"
    first = run["steps"][0]
    ways.press("Home")
    ways.press("ArrowRight")
    assert ways.locator(".drafted .body").text_content() == "".join(first["pieces"])


@pytest.mark.timeout(300)
def test_tree_and_speed_follow_the_quality_of_the_draft(page, server) -> None:
    page.goto(server)
    settle(page)
    ways = page.locator(".two-ways")
    slider, said = ways.locator(".draft"), ways.locator(".promise")
    assert "predicted" not in said.inner_text() and "Recorded on" in ways.locator(".origin").inner_text()
    ways.press("End")
    recorded = len(drawn(ways))
    rates = []
    for value in ("0", slider.get_attribute("max")):
        slider.fill(value)
        assert "predicted" in said.inner_text()
        rates.append(float(said.inner_text().split("pass, ")[1].split("×")[0]))
        assert len(drawn(ways)) > 2
    assert rates[0] < 1 and rates[1] > 2
    slider.fill("0")
    assert "slower than without" in said.inner_text()
    ways.get_by_role("button", name="Back to the recorded run").click()
    assert "predicted" not in said.inner_text() and len(drawn(ways)) == recorded
