"""A target on disk, in Chromium: choose it, measure, plan, decode, unload."""

import re

import pytest

from .browser import LONG_MS, choose_option, go, measure, metric, settle


@pytest.mark.timeout(900)
def test_a_target_on_disk_from_the_choice_to_unloading(page, server):
    page.goto(server)
    settle(page)
    page.get_by_role("button", name="Change pair").click()
    weights = page.locator(".st-key-sidebar_weights").get_by_role("combobox")
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
    assert re.search(r"\d\.\d\d×", metric(page, "Best predicted speedup"))
    page.get_by_text("layers stream from disk").first.wait_for()  # computing may take longer: either is said

    go(page, "Tree")
    assert re.search(r"\d\.\d\d×", metric(page, "Predicted speedup"))
    go(page, "Live")
    page.get_by_role("button", name="Start").first.click()
    page.get_by_text(re.compile(r"Weights streamed at \d+\.\d+ GB/s")).first.wait_for(timeout=LONG_MS)
    page.locator(".st-key-decode_start button:not([disabled])").first.wait_for(timeout=LONG_MS)
    settle(page)
    assert re.search(r"\d\.\d\d×", metric(page, "Speedup"))
    page.get_by_text("Where the time went, step by step").first.click()
    page.get_by_text(re.compile(r"^read \d+\.\d ms")).first.wait_for()  # a lane of its own

    page.get_by_role("button", name="Change pair").click()
    page.get_by_role("button", name="Unload from memory").click()
    page.get_by_role("button", name="Unload from memory").wait_for(state="hidden", timeout=LONG_MS)
    settle(page)
