"""The start page measures everything in an animation that keeps moving; then the other pages use the results.

Screenshots go to the folder SEQUOIA_SCREENSHOTS (`make screenshots` updates those of the README).
"""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest

from tests.e2e.browser import LONG_MS, go, settle, wait_for_speedup
from tests.e2e.test_accessibility import no_serious_faults

MAX_STILL_SHARE = 1 / 15  # of the animation without a change
MAX_STALLS = 2  # longer pauses, when the machine is busy
WATCH = """(stage) => {
  Object.assign(window, {pictures: [], looks: 0})
  let last = ""
  const look = () => {
    window.looks += 1
    if (stage.innerHTML === last) return
    last = stage.innerHTML
    const count = (what) => stage.querySelectorAll(what).length
    window.pictures.push({
      at: performance.now() / 1000, told: stage.querySelector(".told").textContent,
      film: stage.classList.contains("filming"),
      passes: count(".costs .sample"), nodes: stage.querySelector(".field").placed?.length ?? 0,
      typed: stage.querySelector(".drafted .body").textContent.length,
      filled: [...stage.querySelectorAll(".guesses .fill")].filter((bar) => bar.getAttribute("height") > 0).length,
    })
  }
  new MutationObserver(look).observe(stage, {subtree: true, childList: true, attributes: true, characterData: true})
}"""


def start(page, address: str):
    page.goto(address)
    settle(page)
    stage = page.locator(".two-ways")
    stage.evaluate(WATCH)
    page.get_by_role("button", name="Measure it on this machine").click()
    return stage


def wait_for_words(stage, words: str) -> None:
    stage.locator(".told").filter(has_text=words).wait_for(timeout=LONG_MS)


@pytest.mark.timeout(600)
def test_one_button_measures_everything_and_then_a_live_decode_runs(page, server, shot):
    stage = start(page, server)
    stage.locator(".origin").filter(has_text="Your last run").wait_for(timeout=LONG_MS)
    settle(page)
    film = page.evaluate("window.pictures")
    still = [(round(after["at"] - before["at"], 2), before["told"]) for before, after in pairwise(film)]
    length = film[-1]["at"] - film[0]["at"]
    assert sorted(still)[-1 - MAX_STALLS][0] < MAX_STILL_SHARE * length, (length, sorted(still)[-5:])
    timing, counting, planning, writing = (
        [each for each in film if each["film"] and each["told"].startswith(f"{act} · ")] for act in "1234"
    )
    begins = [part[-1]["at"] for part in (timing, counting, planning, writing)]
    assert begins == sorted(begins)
    assert len({each["passes"] for each in timing}) > 8
    assert not timing[0]["filled"] and counting[-1]["filled"] >= 3
    grown = {each["nodes"] for each in planning}
    # On a busy machine, the planned tree may be smaller.
    assert len(grown) > min(5, writing[-1]["nodes"] - 1) and max(grown) <= writing[-1]["nodes"]
    assert len({each["typed"] for each in writing}) > 3
    assert page.get_by_role("link", name="Watch this run step by step").count() == 1
    page.get_by_text(re.compile(r"× measured over .* predicted")).wait_for()
    page.mouse.move(0, 0)
    page.locator(".two-ways:not(.filming)").press("End")
    shot("overview")

    go(page, "Draft")
    page.get_by_text("measured here").first.wait_for()
    go(page, "Tree")
    page.locator(".st-key-tree_picture .field").wait_for()
    go(page, "Machine")
    page.get_by_text("measured here").first.wait_for()
    shot("hardware")

    go(page, "Live")
    page.locator(".figures").get_by_text("of this session").wait_for()
    page.get_by_role("button", name="Start").first.click()
    wait_for_speedup(page)
    page.locator(".tt").first.press("End")
    shot("decode")


@pytest.mark.timeout(600)
def test_a_cancel_stops_at_once_and_keeps_the_measurements(page, server):
    stage = start(page, server)
    wait_for_words(stage, "2 · Counting")
    page.get_by_role("button", name="Cancel").click()
    asked = time.monotonic()
    page.get_by_text("Stopped. Everything measured so far is kept.").wait_for()
    assert time.monotonic() - asked < 5
    settle(page)
    looks = page.evaluate("window.looks")
    stage.press("ArrowRight")
    page.wait_for_timeout(3_000)
    assert page.evaluate("window.looks") == looks
    assert stage.locator(".costs .sample").count() > 20 and stage.locator(".guesses .fill").count()
    assert page.get_by_role("button", name="Measure it on this machine").is_enabled()
    no_serious_faults(page)
    go(page, "Machine")
    page.get_by_text("measured here").first.wait_for()
