"""The timeline's script in a browser page, fed with messages as the server sends them."""

from collections import Counter

import pytest
import torch
from PIL import Image, ImageSequence

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import pair_of, tiny_llama
from tests.e2e.browser import drawn, point_at
from tests.e2e.test_live_tree import ABOUT, PLAYED, TREE, WALKED, stop_clock
from ui.runs.runs import Recorder
from ui.token_text import TokenText
from ui.token_tree import whole_shapes
from ui.token_tree.run_timeline import HTML, SCRIPT, STYLE

PROMPT = [3, 14, 15, 9] * 3
NEWEST = """({ placed }) => {
  const { x } = placed.find(box => box.token === 79)
  return [x, Math.max(...placed.filter(box => box.x > x + 30).map(box => box.y))]
}"""
STATES = {"A": "accepted", "R": "rejected", "N": "unreached"}
ON_LINE = ("accepted", "bonus")
DRAWN = "field => [field.placed, field.ticks, field.clientWidth]"
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
    field = page.locator(".field")
    field.drag_to(field, **STRETCH)  # the second and third steps
    sums = page.locator(".figures").inner_text().split()
    assert sums[:8] == "4 tokens 2 target passes 14.0 ms 2.86×".split()
    for key in ("ArrowLeft", "ArrowLeft"):
        page.locator(".timeline").press(key)  # the third step has not been played
    assert page.locator(".figures").inner_text().split()[:5] == "2 tokens 1 target pass".split()
    page.locator(".timeline").press("End")
    point_at(page, text="below")
    assert page.locator(".details h4").inner_text() == "below rejected"
    send(page, "ab", range(4))
    assert [*Counter(box["x"] for box in drawn(page) if box["state"] == "bonus").values()] == [2] * 4


def test_a_growing_run_is_followed_smoothly_and_not_drawn_without_need(page) -> None:
    stop_clock(page)
    page.set_content(f"<style>{STYLE}</style><div id=place>{HTML}</div>")
    send(page, "c", range(40))
    send(page, "c", range(38, 47))
    field = page.locator(".field")
    frames = []
    for _ in range(3):
        frames.append(field.evaluate(NEWEST))
        page.clock.run_for(150)
    (x, y), (later_x, later_y), (last_x, last_y) = frames
    assert x > later_x > last_x and y < later_y < last_y
    field.evaluate("field => (window.last = field.placed)")
    page.clock.run_for(5_000)
    assert field.evaluate("field => field.placed === window.last")
    page.emulate_media(reduced_motion="reduce")
    send(page, "c", range(46, 50))
    assert field.evaluate("field => field.placed.some(box => box.token === 99)")
    send(page, "c", range(99, 100))
    page.clock.run_for(100)
    assert page.evaluate("window.asked") == [["resync", 50]]


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


def record(kind: str) -> dict:
    """Decode with tiny random models, and return the shapes and steps of the run."""
    policies = pytest.importorskip("sequoia_extras.dynamic_trees.policies")
    index = pytest.importorskip("sequoia_extras.dynamic_trees.text_index").TextIndex()
    dynamic = policies.SpecExecTree(max_size=14, max_depth=4, beam=3)
    grown = {"dynamic": dynamic, "lookup": policies.LookupTree(index, max_size=10)}
    scale = 4 if kind in grown else 0.1
    target, draft = tiny_llama(1, scale=scale), tiny_llama(1 if kind in grown else 2, scale=scale)

    def steps(*ends: int) -> list:
        pair = pair_of(HuggingFaceModel(target.model, "target", frozenset(ends)), draft)
        options = {"sampling": SamplingConfig(1.0), "details": StepDetails(likely=1)}
        options |= {"tree": grown.get(kind, k_ary_tree(2, 3)), "max_new_tokens": 10 if kind == "length" else 25}
        generator = torch.Generator().manual_seed(0)
        return list(decode(PROMPT, pair, generator=generator, **options))

    taken = steps()
    if kind == "eos":
        taken = steps(taken[2].new_tokens[1])
    assert kind not in ("eos", "length") or (taken[-1].finished, taken[-1].bonus_token) == (kind, None)
    run: dict = {"shapes": [], "steps": []}
    recorder = Recorder(run, TokenText(lambda ids: "".join(chr(192 + id) for id in ids), PROMPT))
    for step in taken:
        recorder.add(step)
    return run


@pytest.mark.parametrize("kind", ["static", "dynamic", "lookup", "eos", "length"])
@pytest.mark.parametrize("width", [8_000, 1_280, 80])  # words, threads and fringes
def test_everything_drawn_is_in_the_record(kind, width, page) -> None:
    run = record(kind)
    expected, starts = [], [0]
    for step in run["steps"]:
        path, places = step["path"], {}
        for node, parent in list(enumerate(run["shapes"][step["shape"]]))[1:]:
            places[node] = starts[-1] + path.index(parent) if parent in path else places[parent]
            expected.append((STATES[step["outcomes"][node]], node, places[node], step["tokens"][node]))
        starts.append(starts[-1] + len(step["pieces"]))
        if step["bonus"]:
            expected.append(("bonus", "bonus", starts[-1] - 1, step["bonus"]))
    page.set_viewport_size({"width": width, "height": 1_600})
    page.set_content(f"<style>{STYLE} .timeline {{ --high: 1500px !important }}</style><div id=place>{HTML}</div>")
    told = {"about": ABOUT, "baseline": BASELINE, "from": 0, "epoch": "run", "total": len(run["steps"])}
    told |= {"shapes": whole_shapes(run["shapes"]), "steps": run["steps"]}
    page.evaluate(PLAYED, [SCRIPT, [{"runs": [told], "running": False}]])
    boxes, ticks, wide = page.locator(".field").evaluate(DRAWN)
    column = min(190, (wide - 44) / (starts[-1] + 1))
    assert [tick["x"] for tick in ticks] == pytest.approx([18 + start * column for start in starts[:-1]])
    assert [tick["tokens"] for tick in ticks] == [len(step["pieces"]) for step in run["steps"]]
    (line,) = {box["y"] for box in boxes if box["state"] in ON_LINE}
    found = []
    for box in boxes:
        place = round((box["x"] + box["width"] / 2 - 18) / column) - 1
        assert box.get("token") == (place if box["y"] == line else None)
        found.append((box["state"], box["node"], place, box.get("text")))
    if width < 8_000:
        expected = [key[:3] for key in expected if width > 80 or key[0] in ON_LINE]
        found = [key[:3] for key in found]
    assert Counter(found) == Counter(expected)
    whole = [len(step["pieces"]) for step in run["steps"] if step["bonus"]]
    said = page.locator(".summary").inner_text()
    named = [f": {size} token" in said for size in (max(whole), min(whole))]
    assert named == [max(whole) > min(whole)] * 2
