"""Evidence in Chromium on the real demo pair: at once what is recorded, then a comparison and a check of one's own."""

import json

import pytest

from .browser import LONG_MS, both_themes, go, metric, number, open_section, settle


def move_slider(page, key: str, value: str) -> None:
    """Move a slider by its keys until it says the value; select sliders say it in words."""
    slider = page.locator(f".st-key-{key}").get_by_role("slider")
    slider.focus()
    slider.press("Home")
    for _ in range(100):
        if value in (slider.input_value(), slider.get_attribute("aria-valuetext")):
            page.wait_for_timeout(500)  # the slider keeps its value back for a while, and a click then can be lost
            return
        slider.press("ArrowRight")
    raise AssertionError(f"{key} never said {value}")


def start(page, part: str, done: str) -> None:
    page.locator(f".st-key-robustness_{part}_start button").click()
    page.get_by_text(done).first.wait_for(timeout=LONG_MS)
    settle(page)


@pytest.mark.timeout(600)
def test_recorded_evidence_then_ones_own(page, server, shot, tmp_path):
    page.goto(server)
    settle(page)
    go(page, "Is it exact?", "Verifiers")
    page.get_by_text("recorded on").first.wait_for()  # a newcomer sees evidence before running anything
    page.locator(".st-key-robustness_outcomes .js-plotly-plot").wait_for()
    cell = page.locator(".st-key-robustness_outcomes .textpoint").first.bounding_box()
    page.mouse.click(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
    page.locator(".st-key-robustness_tokens .js-plotly-plot").wait_for()
    assert number(page, "Tokens per step") > 1.0
    both_themes(page, shot, "robustness", height=1_830)
    for name in ("Guarantees", "Losslessness", "Assumption"):
        open_section(page, name)
        page.wait_for_timeout(1_000)
    assert "robustness_section=Assumption" in page.url

    open_section(page, "Verifiers")
    page.get_by_text("Run this comparison").click()
    box = page.locator(".st-key-robustness_temperatures")
    chosen = box.locator("button[aria-pressed=true]")
    chosen.first.wait_for()
    for temperature in set(chosen.all_inner_texts()) ^ {"0.6"}:
        box.get_by_role("button", name=temperature, exact=True).click()
        settle(page)
    assert chosen.all_inner_texts() == ["0.6"]
    move_slider(page, "robustness_comparison_prompts", "2")
    move_slider(page, "robustness_comparison_tokens", "16")
    start(page, "comparison", "measured here on the demo pair, 2 prompts × 16 tokens")
    assert "of 5" in metric(page, "Won, over all settings")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    download.value.save_as(tmp_path / "comparison.json")
    held = json.loads((tmp_path / "comparison.json").read_text())["comparison"]
    methods = ["sequoia", "specinfer", "topk", "specinfer_tree", "lookup", "hybrid"]
    assert [run["verifier"] for run in held["runs"]] == methods
    assert held["settings"]["prompts"] == 2 and len(held["rejection"]) == 3 * 16 + 4 + 16
    assert f"{held['runs'][0]['tokens_per_step']:.2f}" in metric(page, "Tokens per step")

    open_section(page, "Losslessness")
    page.get_by_text("Run this check").click()
    settle(page)  # it unfolds
    move_slider(page, "robustness_samples", "200")
    start(page, "losslessness", "measured here on the demo pair")
    assert "Passed" in metric(page, "Losslessness") and "200 samples" in metric(page, "Losslessness")
    page.locator(".st-key-robustness_counts .js-plotly-plot").wait_for()
