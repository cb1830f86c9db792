"""My server in Chromium: pasted counts give the verdict and a range of the best draft length at once."""

import pytest

from tests.e2e.browser import settle
from tests.extras.servers.samples import AFTER, vllm_text


@pytest.mark.timeout(300)
def test_pasted_counts_are_answered_at_once_and_a_device_narrows_the_range(page, server):
    page.goto(f"{server}/server?server_way=Paste")
    settle(page)
    page.get_by_label("Last reading").fill(vllm_text(*AFTER))
    page.get_by_label("Last reading").press("Control+Enter")
    page.get_by_text("Healthy:").wait_for(timeout=10_000)
    page.get_by_text("Best K: 4 or more for one request at a time").wait_for(timeout=10_000)
    settle(page)
    page.get_by_text("predicted 1.6 to 2.9× the speed").wait_for()
    page.locator(".st-key-server_speed .js-plotly-plot").wait_for()
    page.get_by_role("slider").last.press("ArrowLeft")
    page.get_by_text("assumed to cost 2 to 19% of a target pass").first.wait_for()
    page.get_by_text("Device and models", exact=True).click()
    page.get_by_text("modelled times of").first.wait_for()
