"""The timeline's script in a browser page, fed with messages as the server sends them."""

from collections import Counter

import pytest
from PIL import Image, ImageSequence

from tests.e2e.browser import drawn, point_at
from tests.e2e.test_live_tree import ABOUT, PLAYED, TREE, WALKED
from ui.token_tree.run_timeline import HTML, SCRIPT, STYLE

TOKENS = "field => [field.ticks, ...field.placed.map(box => box.token)]"
BASELINE = {"tokens": 10, "seconds": 0.1}
STRETCH = {"source_position": {"x": 426, "y": 380}, "target_position": {"x": 834, "y": 380}}  # tokens 2 to 5


def send(page, epochs: str, steps: range) -> None:
    """Send steps of two tokens in 7 ms each, of one run per letter."""
    told = {"about": ABOUT, "baseline": BASELINE, "shapes": [TREE], "from": steps.start, "total": steps.stop}
    # Steps that were the same object here would be the same in the page.
    runs = [told | {"epoch": each, "steps": [WALKED | {"index": index} for index in steps]} for each in epochs]
    page.evaluate(PLAYED, [SCRIPT, [{"runs": runs, "running": epochs == "c"}]])


def test_the_text_is_a_line_with_the_rejected_tokens_below(page) -> None:
    page.set_content(f"<style>{STYLE}</style><div id=place>{HTML}</div>")
    send(page, "a", range(4))
    boxes = sorted(drawn(page), key=lambda box: (box["y"], box["x"]))
    line, below = boxes[:8], boxes[8:]
    assert [box["text"] for box in line] == ["right", "bonus"] * 4 and len({box["y"] for box in line}) == 1
    assert Counter(box["text"] for box in below) == {"wrong": 4, "below": 4}
    field = page.locator(".field")
    field.drag_to(field, **STRETCH)  # the second and third steps
    sums = page.locator(".figures").inner_text().split()
    assert sums[:8] == "4 tokens 2 target passes 14.0 ms 2.86×".split()
    point_at(page, text="below")
    assert page.locator(".details h4").inner_text() == "below rejected"
    send(page, "ab", range(4))
    assert [*Counter(box["x"] for box in drawn(page) if box["state"] == "bonus").values()] == [2] * 4
    assert field.evaluate(TOKENS)[0] == 8  # one tick per target pass

    send(page, "c", range(40))
    send(page, "c", range(38, 47))
    assert 93 in (tokens := field.evaluate(TOKENS)) and 0 not in tokens
    send(page, "c", range(99, 100))
    page.wait_for_function("window.asked.length")
    assert page.evaluate("window.asked") == [["resync", 47]]


def test_a_finished_run_plays_by_its_clock_and_is_saved_as_an_animation(page, tmp_path) -> None:
    page.set_content(f"<style>:root {{ --st-background-color: white }} {STYLE}</style><div id=place>{HTML}</div>")
    send(page, "ab", range(4))
    timeline, figures = page.locator(".timeline"), page.locator(".figures")
    timeline.press("Home")
    assert figures.inner_text().split()[:2] == ["A:", "0"] and not drawn(page)
    timeline.press("ArrowRight")
    assert figures.inner_text().split()[:2] == ["A:", "2"] and page.locator(".at").inner_text() == "7.0 ms"
    page.locator(".speed").select_option("As fast as it was")
    timeline.press(" ")
    page.get_by_role("button", name="Play").wait_for()
    assert figures.inner_text().split()[:2] == ["A:", "8"]
    timeline.press("r")
    assert page.locator(".details h4").inner_text() == "wrong rejected"
    page.locator(".speed").select_option("Slow")
    with page.expect_download() as saved:
        page.get_by_role("button", name="WebP").click()
    saved.value.save_as(file := tmp_path / "run.webp")
    with Image.open(file) as animation:
        assert animation.n_frames == 5 and len({frame.tobytes() for frame in ImageSequence.Iterator(animation)}) == 5
        animation.seek(0)
        animation.load()
        assert animation.info["duration"] == pytest.approx(700, rel=0.2)
