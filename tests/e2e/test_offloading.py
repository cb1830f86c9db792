"""A target on disk, in Chromium: choose it, measure, plan, decode, unload."""

import re

import pytest

from tests.e2e.browser import LONG_MS, choose_option, go, measure, metric, settle, wait_for_speedup


@pytest.mark.timeout(900)
def test_choosing_measuring_and_unloading_a_target_on_disk(page, server):
    page.goto(server)
    settle(page)
    page.locator(".st-key-plan_models_open").get_by_test_id("stPopoverButton").first.click()
    weights = page.locator(".st-key-models_weights").get_by_role("combobox")
    weights.scroll_into_view_if_needed()
    choose_option(page, weights, "On disk")
    page.get_by_role("button", name="Use this pair").click()
    page.get_by_text("Target on disk: takes").first.wait_for(timeout=LONG_MS)
    page.keyboard.press("Escape")
    settle(page)
    assert page.get_by_role("button", name="Measure it on this machine", exact=True).is_visible()

    measure(page, "Draft", "Measure on the demo pair", "measured here on the demo pair with its target on disk")
    assert "512" in metric(page, "Positions measured")  # 8 prompts of 64 tokens

    measure(page, "Machine", "Measure this machine", "measured here on the demo pair with its target on disk")
    assert re.search(r"\d+(\.\d+)?×", metric(page, "Best static tree"))
    page.get_by_text("layers are streamed from disk").first.wait_for()

    go(page, "Tree")
    assert re.search(r"\d+(\.\d+)?×", metric(page, "Predicted speedup"))
    go(page, "Live")
    page.get_by_role("button", name="Start").first.click()
    page.get_by_text(re.compile(r"Weights streamed at \d+\.\d+ GB/s")).first.wait_for(timeout=LONG_MS)
    wait_for_speedup(page)
    page.get_by_text("Where the time went, step by step").first.click()
    page.get_by_text(re.compile(r"^read \d+\.\d ms")).first.wait_for()

    page.locator(".st-key-plan_models_open").get_by_test_id("stPopoverButton").first.click()
    page.get_by_role("button", name="Unload from memory").click()
    page.get_by_role("button", name="Unload from memory").wait_for(state="hidden", timeout=LONG_MS)
    settle(page)
