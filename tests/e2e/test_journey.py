"""The whole journey of a newcomer in Chromium: one button, then every page, an own vector, and a live decode.

Screenshots go to the folder named by SEQUOIA_SCREENSHOTS (`make screenshots` renews those of the README).
"""

import re

import pytest

from .browser import LONG_MS, go, metric, settle


@pytest.mark.timeout(600)
def test_from_one_button_to_a_live_decode(page, server, shot, tmp_path):
    page.goto(server)
    settle(page)

    page.get_by_role("button", name="Measure it on this machine").first.click()
    page.get_by_text("Watch this run").first.wait_for(timeout=LONG_MS)
    settle(page)
    assert re.search(r"\d\.\d\d×", metric(page, "Measured speedup"))
    assert float(re.search(r"(\d+\.\d\d)", metric(page, "Tokens per step"))[1]) > 1.0
    page.mouse.move(0, 0)
    page.locator(".two-ways:not(.filming)").press("End")
    shot("overview")

    go(page, "Draft")
    page.get_by_text("measured here").first.wait_for()
    go(page, "Tree")
    page.locator(".js-plotly-plot").first.wait_for()  # drawn after the script is done
    go(page, "Machine")
    page.get_by_text("measured here").first.wait_for()
    shot("hardware")

    go(page, "Live")
    page.get_by_text("The last run of this session").first.wait_for()
    page.get_by_role("button", name="Start").first.click()
    # a fast run is over before its progress text is seen; the earlier run's caption goes for good when ours takes over
    page.get_by_text("The last run of this session").first.wait_for(state="hidden", timeout=LONG_MS)
    page.locator(".st-key-decode_start button:not([disabled])").first.wait_for(timeout=LONG_MS)
    settle(page)
    assert re.search(r"\d\.\d\d×", metric(page, "Speedup"))
    page.locator(".tt").press("End")  # of a run that plays itself
    shot("decode")

    own = tmp_path / "own.csv"
    own.write_text("rank;prob\n1;0,7\n2;0,1\n3;0,05\n")
    go(page, "Draft")
    page.locator(".st-key-acceptance_way").get_by_text("Upload", exact=True).click()
    settle(page)
    page.locator('input[type="file"]').set_input_files(own)
    page.get_by_text("own.csv").first.wait_for()
    settle(page)
    assert "70.0%" in metric(page, "First choice accepted")
    go(page, "Tree")
    assert "0.70" not in metric(page, "Chain of the same depth")
