"""Runs in progress: a race and its replay, adaptive trees step by step, and a prompt that stays."""

from __future__ import annotations

import re

import pytest

from tests.e2e.browser import LONG_MS, drawn, go, in_plan, in_popover, point_at, settle


def wait_for_pause(page, step: int) -> None:
    """Wait until the engine pauses after a step, and the tree shows it."""
    page.get_by_text(f"Paused after step {step}:").wait_for(timeout=LONG_MS)
    page.locator(".st-key-decode_tree .at", has_text=re.compile(rf"of {step}$")).wait_for()


@pytest.mark.timeout(600)
def test_lanes_stay_on_the_first_screen_and_a_race_is_replayed(page, server):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{server}/race?race_tokens=32")
    settle(page)
    track = page.locator(".st-key-race_track")
    track.locator(".track").evaluate("root => (root.dataset.tag = 'kept')")

    def check_lanes() -> None:
        lanes = track.locator("[data-tag=kept] .lane").all()
        assert len(lanes) == 8 and all(0 < lane.bounding_box()["y"] < 780 for lane in lanes)

    check_lanes()
    page.get_by_role("button", name="Start the race").click()
    track.locator(".running").wait_for(timeout=LONG_MS)
    track.locator(".figures", has_text="tok/s").first.wait_for()
    check_lanes()
    page.get_by_text("All methods wrote the same text").wait_for(timeout=LONG_MS)
    settle(page)
    check_lanes()
    track.get_by_role("button", name="1/10×").click()
    keys = track.locator(".track")
    keys.focus()
    keys.press("Home")
    assert (
        track.locator(".figures").first.inner_text().startswith("0 tokens") and not track.locator(".first.home").count()
    )
    keys.press("Space")
    track.get_by_role("button", name="Pause").wait_for()
    while int(track.locator(".scrub").input_value()) < 50:
        page.wait_for_timeout(50)
    keys.press("End")
    track.get_by_role("button", name="Play").wait_for()
    assert track.locator(".first.home").count() == 1 and "on this prompt: " in track.locator(".said").inner_text()


@pytest.mark.timeout(600)
def test_adaptive_trees_change_without_flicker_and_show_the_gain_of_nodes(page, server, tmp_path):
    page.goto(server)
    settle(page)
    page.goto(f"{server}/tree?tree_kind=Adaptive")
    settle(page)
    go(page, "Live")
    page.locator(".st-key-stepwise label").first.click()
    settle(page)
    page.get_by_role("button", name="Start", exact=True).click()
    tree = page.locator(".st-key-decode_tree")
    sizes = set()
    for step in range(1, 7):
        wait_for_pause(page, step)
        if step == 1:
            tree.locator(".tt").evaluate("root => (root.dataset.tag = 'kept')")
        sizes.add(len(drawn(tree)))
        page.get_by_role("button", name="Next step").click()
    page.get_by_role("button", name="Play").click()
    page.locator(".st-key-decode_start button:enabled").wait_for(timeout=LONG_MS)
    settle(page)
    assert len(sizes) > 1
    assert tree.locator(".tt").get_attribute("data-tag") == "kept"
    tree.locator(".times summary").click()
    tree.locator(".growth-key span").first.wait_for()
    assert re.search(r"n = \d+ nodes, of \d+ to \d+", tree.locator(".growth-key").inner_text())
    check_gains(tree)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a page").click()
    saved.value.save_as(tmp_path / "run.html")
    page.goto((tmp_path / "run.html").as_uri())
    check_gains(page.locator("#liveTree"))


def check_gains(tree) -> None:
    """Check the gain of the last accepted node and the list of left-out nodes."""
    tree.locator(".tt").press("End")
    point_at(tree, node=max(each["node"] for each in drawn(tree) if each["state"] == "accepted"))
    words = tree.locator(".details").text_content()
    f, cost = (float(found) for found in re.search(r"f = ([\d.e-]+) .*cost is ([\d.e-]+) tokens", words).groups())
    assert 0 < cost <= f <= 1
    tree.locator(".left-out summary").click()
    assert "One more node would cost" in tree.locator(".left-out").inner_text()
    rows = tree.locator(".left-out tr").all()[1:]
    assert 0 < len(rows) <= 12
    gains = [float(row.locator("td").nth(2).inner_text()) for row in rows]
    assert gains == sorted(gains, reverse=True)


def test_a_typed_prompt_stays_when_settings_change(page, server):
    page.goto(server)
    settle(page)
    go(page, "Live")
    page.locator(".st-key-decode_controls").get_by_test_id("stPopoverButton").filter(has_text="Prompt:").click()
    page.locator(".st-key-decode_prompt textarea").fill("my_own = 1\n")
    page.keyboard.press("Escape")
    with in_plan(page, "sampling"):
        page.get_by_role("slider", name="Temperature").press("ArrowRight")
    with in_popover(page, "Settings"):
        page.locator(".st-key-tokens").get_by_role("slider").press("ArrowLeft")
    page.get_by_role("button", name="Prompt: my_own = 1").wait_for()
