"""Journeys of runs while they go on: a race and its replay; step by step, planned again, on with the new tree."""

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
    gaps = [text for text in track.locator(".figures").all_inner_texts() if " · +" in text]
    assert len(gaps) == track.locator(".name").count() - 1 and all("tok/s" in text for text in gaps)
    lengths = track.locator(".run").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert lengths == sorted(lengths) and track.locator(".text").inner_text()
    track.scroll_into_view_if_needed()
    page.set_viewport_size({"width": 480, "height": 900})
    page.wait_for_timeout(500)
    assert track.locator(".track").evaluate("root => root.scrollWidth <= root.clientWidth + 1")
    page.emulate_media(reduced_motion="reduce")
    page.reload()  # a race begins anew, and who asked for less motion sees its finish
    settle(page)
    page.get_by_role("button", name="Start the race").click()
    track.get_by_text("On this prompt").wait_for(timeout=LONG_MS)
    assert track.get_by_role("button", name="Play").is_visible() and track.locator(".method.first").count() == 1


@pytest.mark.timeout(600)
def test_adaptive_trees_change_without_flicker_and_say_what_each_node_adds(page, server, tmp_path):
    page.goto(server)
    settle(page)
    page.goto(f"{server}/tree?tree_kind=Adaptive")
    settle(page)
    go(page, "Live")
    page.locator(".st-key-stepwise label").first.click()
    settle(page)
    page.get_by_role("button", name="Start", exact=True).click()
    tree = page.locator(".st-key-decode_tree")
    drawn = tree.locator(".nodes .node:not(.bonus)")
    sizes = set()
    for step in range(1, 7):
        held_after(page, step)
        if step == 1:
            tree.locator(".tt").evaluate("root => (root.dataset.tag = 'kept')")
            drawn.first.evaluate("node => (node.dataset.tag = 'root')")
        sizes.add(drawn.count())
        page.get_by_role("button", name="Next step").click()
    page.get_by_role("button", name="Play").click()
    page.locator(".st-key-decode_start button:enabled").wait_for(timeout=LONG_MS)
    settle(page)
    assert len(sizes) > 1  # the shape did change
    assert tree.locator(".tt").get_attribute("data-tag") == "kept" and drawn.first.get_attribute("data-tag") == "root"
    tree.locator(".times summary").click()
    tree.locator(".growth-key span").first.wait_for()
    assert re.search(r"n = \d+ nodes, of \d+ to \d+", tree.locator(".growth-key").inner_text())
    check_gains(tree)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a page").click()
    saved.value.save_as(tmp_path / "run.html")
    page.goto((tmp_path / "run.html").as_uri())
    check_gains(page)


def check_gains(tree) -> None:
    """Click the last node of the last step's accepted path, and open what was left out."""
    tree.locator(".tt").press("End")  # it plays by itself
    tree.locator(".nodes .node.accepted").last.click()
    words = tree.locator(".details").text_content()
    f, cost = (float(found) for found in re.search(r"f = ([\d.e-]+) .*cost is ([\d.e-]+) tokens", words).groups())
    assert 0 < cost <= f <= 1
    tree.locator(".left-out summary").click()
    assert "One more node would cost" in tree.locator(".left-out").inner_text()
    rows = tree.locator(".left-out tr").all()[1:]
    assert 0 < len(rows) <= 12
    gains = [float(row.locator("td").nth(2).inner_text()) for row in rows]
    assert gains == sorted(gains, reverse=True)


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
