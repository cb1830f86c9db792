"""Journeys of runs while they go on: a race and its replay; step by step and on; a prompt while it is written."""

from __future__ import annotations

import re

import pytest

from .browser import LONG_MS, go, in_popover, settle


def held_after(page, step: int) -> None:
    """Wait until the engine does after a step, which the tree shows."""
    page.get_by_text(f"Paused after step {step}:").wait_for(timeout=LONG_MS)
    page.locator(".st-key-decode_tree .at", has_text=re.compile(rf"of {step}$")).wait_for()


@pytest.mark.timeout(600)
def test_race_replayed_side_by_side(page, server):
    page.goto(f"{server}/race?race_tokens=32")
    settle(page)
    page.get_by_role("button", name="Start the race").click()
    track = page.locator(".st-key-race_track")
    page.get_by_text("All methods wrote the same text").wait_for(timeout=LONG_MS)
    settle(page)
    track.get_by_role("button", name="1/10×").click()
    keys = track.locator(".track")
    keys.focus()
    keys.press("Home")
    assert track.locator(".figures").first.inner_text().startswith("0 tokens") and not track.locator(".first").count()
    keys.press("Space")
    track.get_by_role("button", name="Pause").wait_for()
    while int(track.locator(".scrub").input_value()) < 50:  # the clock runs, ten times slower than it was
        page.wait_for_timeout(50)
    keys.press("End")
    track.get_by_role("button", name="Play").wait_for()
    assert track.locator(".method.first").count() == 1 and "On this prompt" in track.locator(".said").inner_text()
    lengths = track.locator(".run").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert lengths == sorted(lengths) and track.locator(".text").inner_text()


@pytest.mark.timeout(600)
def test_a_run_is_held_after_each_step_and_let_go(page, server):
    page.goto(server)
    settle(page)
    go(page, "Live")
    page.locator(".st-key-stepwise label").first.click()
    settle(page)
    page.get_by_role("button", name="Start", exact=True).click()
    for step in (1, 2):
        held_after(page, step)
        page.get_by_role("button", name="Next step").click()
    held_after(page, 3)
    page.get_by_role("button", name="Play").click()
    page.locator(".st-key-decode_start button:enabled").wait_for(timeout=LONG_MS)


def test_a_prompt_that_was_typed_stays_when_settings_change(page, server):
    page.goto(server)
    settle(page)
    go(page, "Live")
    page.locator(".st-key-decode_controls").get_by_test_id("stPopoverButton").filter(has_text="Prompt:").click()
    page.locator(".st-key-decode_prompt textarea").fill("my_own = 1\n")
    page.keyboard.press("Escape")
    with in_popover(page, "Settings"):
        page.get_by_role("slider", name="Temperature").press("ArrowRight")
    page.get_by_role("button", name="Prompt: my_own = 1").wait_for()
