"""The whole chain as a film on the first screen: it never stands still, stops at once, and keeps what was measured."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest

from .browser import LONG_MS, go, metric, settle
from .test_accessibility import no_serious_faults

STILL_SHARE = 1 / 15  # of the film, a second of fifteen; STALLS times the machine may be busy with something else
STALLS = 2
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
      passes: count(".costs .sample"), nodes: count(".nodes .node"),
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


def tells(page, stage, words: str) -> None:
    stage.locator(".told").filter(has_text=words).wait_for(timeout=LONG_MS)


@pytest.mark.timeout(600)
def test_something_moves_all_the_time_from_the_first_pass_to_the_text(page, server):
    stage = start(page, server)
    stage.locator(".origin").filter(has_text="Your last run").wait_for(timeout=LONG_MS)  # it ends with its own text
    settle(page)
    film = page.evaluate("window.pictures")
    still = [(round(after["at"] - before["at"], 2), before["told"]) for before, after in pairwise(film)]
    length = film[-1]["at"] - film[0]["at"]
    assert sorted(still)[-1 - STALLS][0] < STILL_SHARE * length, (length, sorted(still)[-5:])
    timing, counting, planning, writing = (
        [each for each in film if each["film"] and each["told"].startswith(f"{act} · ")] for act in "1234"
    )
    begins = [part[-1]["at"] for part in (timing, counting, planning, writing)]
    assert begins == sorted(begins)
    assert len({each["passes"] for each in timing}) > 8  # a few points at a time
    assert not timing[0]["filled"] and counting[-1]["filled"] >= 3
    assert max(each["nodes"] for each in planning) == writing[-1]["nodes"]
    assert len({each["typed"] for each in writing}) > 3
    assert page.get_by_role("link", name="Watch this run step by step").count() == 1
    assert re.search(r"\d\.\d\d×", metric(page, "Measured speedup")) and "×" in metric(page, "Predicted speedup")


@pytest.mark.timeout(600)
def test_a_cancel_stops_it_at_once_and_what_was_measured_stays(page, server):
    stage = start(page, server)
    tells(page, stage, "2 · Counting")
    page.get_by_role("button", name="Cancel").click()
    asked = time.monotonic()
    page.get_by_text("Stopped. What was measured until then is in use.").wait_for()
    assert time.monotonic() - asked < 5
    settle(page)
    looks = page.evaluate("window.looks")
    stage.press("ArrowRight")  # moves the clock of the two ways, which are not shown
    page.wait_for_timeout(3_000)
    assert page.evaluate("window.looks") == looks  # nor is the same drawn again
    assert stage.locator(".costs .sample").count() > 20 and stage.locator(".guesses .fill").count()
    assert page.get_by_role("button", name="Measure it on this machine").is_enabled()
    no_serious_faults(page)
    go(page, "Machine")
    page.get_by_text("measured here").first.wait_for()
