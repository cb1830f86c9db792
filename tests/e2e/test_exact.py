"""Recorded evidence in Chromium: on show at once, a setting of it by a click on its cell."""

import pytest

from .browser import both_themes, go, number, open_section, settle


@pytest.mark.timeout(600)
def test_recorded_evidence_is_there_before_anything_was_run(page, server, shot):
    page.goto(server)
    settle(page)
    go(page, "Is it exact?", "Verifiers")
    page.get_by_text("recorded on").first.wait_for()
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
