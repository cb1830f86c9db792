"""The live tree's script in a browser page, fed with messages as a busy server sends them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.e2e.browser import drawn, point_at
from ui.token_tree import CSS, HTML, SCRIPT

ABOUT = {"prompt": "p", "greedy": True, "after_rejection": "", "at": None, "link": None}
PLAYED = """
async ([script, messages]) => {
  window.tree ??= await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  window.asked ??= []
  const setTriggerValue = (name, wish) => window.asked.push(name === "steer" ? wish : [name, wish.have])
  const parentElement = document.getElementById("place")
  for (const data of messages) window.tree.default({ data, parentElement, setTriggerValue })
}
"""
PAINTED = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(v => v)"
TREE = {"index": 0, "parents": [-1, 0, 0, 2], "across": [0.5, 0, 1, 1]}
WALKED = {  # the first child is rejected, the second accepted, its child rejected
    "shape": 0, "tokens": ["r", "wrong", "right", "below"], "outcomes": "ARAR", "draft": [1, 0.5, 0.4, 0.3],
    "target": [1, 0.1, 0.8, 0.1], "path": [0, 2], "bonus": "bonus", "pieces": ["right", "bonus"],
    "trials": [[1, 0.9, 0.1, 0.5], [2, 0.2, 0.8, 0.4], [3, 0.7, 0.1, 0.3]], "seconds": [0.001, 0.004, 0.001, 0.001],
}  # fmt: skip


def message(start: int, count: int, *, first: bool = False, total: int = 50, running: bool = True, **more) -> dict:
    step = {
        "shape": 0, "tokens": ["a", "b"], "outcomes": "AN", "draft": [1, 0.5], "target": [1, 0.5], "path": [0],
        "bonus": "c", "pieces": ["c"], "trials": [], "seconds": [0.1] * 4, "finished": None,
    }  # fmt: skip
    steps = [step | {"index": start + i} for i in range(count)]
    return {
        "epoch": "run",
        "about": dict(ABOUT) if first else None,
        "shapes": [{"index": 0, "parents": [-1, 0], "across": [0, 0]}] if first else [],
        "from": start,
        "steps": steps,
        "total": total,
        "running": running,
        "waiting": "",
        "interval_sec": 0.0,
    } | more


def send(page, *messages: dict) -> None:
    page.evaluate(PLAYED, [SCRIPT, [*messages]])


def start(page, *messages: dict) -> None:
    """Load the script in a new page and send messages."""
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    page.evaluate("window.asked = []")
    send(page, *messages)


def recorded(*steps: dict, tree: dict = TREE, **about) -> dict:
    """Return the message of a finished run with these steps."""
    every = [WALKED | {"index": index, "finished": None} | step for index, step in enumerate(steps)]
    sent = message(0, 0, first=True, total=len(steps), running=False, shapes=[tree], steps=every)
    sent["about"] |= about
    return sent


def shown(page, **about) -> None:
    """Show a finished run of two steps."""
    start(page, recorded({}, {"finished": "length"}, **{"greedy": False} | about))


def stop_clock(page) -> None:
    """Let time pass only by `run_for`."""
    page.clock.install(time="2026-01-01T00:00:00Z")
    page.clock.pause_at("2026-01-02T00:00:00Z")


def describe(page, text: str) -> str:
    """Return the description of a node."""
    point_at(page, text=text)
    return page.locator(".details").inner_text()


SHAPES = [  # the node r21 of the first tree has another number in the second
    {"index": 0, "parents": [-1, 0, 0, 2], "across": [0.5, 0, 1, 1]},
    {"index": 1, "parents": [-1, 0, 0, 1, 2, 2], "across": [0.75, 0, 1.5, 0, 1, 2]},
    {"index": 2, "parents": [-1], "across": [0]},
]
NAMES = [["r", "r1", "r2", "r21"], ["r", "r1", "r2", "r11", "r21", "r22"], ["r"]]


def test_a_chosen_node_stays_chosen_while_its_path_is_in_the_tree(page) -> None:
    steps = []
    for shape in (0, 1, 0, 2):
        size = len(NAMES[shape])
        odds = {"draft": [0.5] * size, "target": [0.5] * size}
        steps.append({"shape": shape, "tokens": NAMES[shape], "outcomes": "A" + "N" * (size - 1), "path": [0]} | odds)
    sent = recorded(*steps)
    start(page, sent | {"shapes": SHAPES})
    page.locator(".tt").press("Home")
    assert describe(page, "r21").startswith("r21 not reached")
    for title in ("r21", "r21", "Why did it stop here?"):
        page.locator(".tt").press("ArrowRight")
        assert page.locator(".details h4").inner_text().startswith(title)


LEAN = message(0, 3, first=True)
for step in LEAN["steps"][:2]:
    step["lean"] = True
ENDED = message(3, 1, total=4, running=False)
BEGUN = message(0, 0, first=True, total=0)
PARTS = [message(start, 20, first=start == 0, running=False) for start in (0, 20, 40)]
SELDOM = {"interval_sec": 3.0}
LOST_SHAPE = message(1, 1)
LOST_SHAPE["steps"][0]["shape"] = 1
LOST = [message(9, 1)] * 12
REQUESTS = {  # messages, milliseconds waited, and the steps from which the script requested data again
    "a step with a lost shape": ([message(0, 1, first=True), LOST_SHAPE, message(4, 1)], 0, [1]),
    "a lost beginning, twice a second until it arrives": (LOST, 1_200, [0, 0, 0]),
    "a lost step, once for several messages": ([message(0, 2, first=True), *LOST], 0, [2]),
    "a lost step, for a limited time": ([message(0, 2, first=True), *LOST], 8_000, [2] * 12),
    "the rest of a finished run": (PARTS[:1], 700, [20, 20]),
    "the rest of a run after several parts": ([*PARTS[:2], message(40, 10, running=False)], 1_200, [20, 40]),
    "no tables during the run": ([LEAN], 700, []),
    "steps without tables after the run": ([LEAN, ENDED], 700, [0, 0]),
    "nothing of an old run after a new one has begun": ([LEAN, ENDED, BEGUN | {"epoch": "next"}], 1_200, [0]),
    "nothing of a run without steps": ([BEGUN], 1_500, []),
    "once for a run without steps that is polled rarely": ([BEGUN | SELDOM], 3_000, [0]),
}


def test_lost_messages_are_requested_again(page) -> None:
    """A busy server drops messages that newer ones replace, and answers to requests."""
    stop_clock(page)
    for case, (messages, wait_ms, asked) in REQUESTS.items():
        page.goto("about:blank")
        start(page)
        for each in messages:
            send(page, each)
            page.clock.run_for(5)
        page.clock.run_for(wait_ms)
        assert page.evaluate("window.asked") == [["resync", have] for have in asked], case


def test_steps_that_arrive_together_are_shown_one_by_one(page) -> None:
    stop_clock(page)
    start(page, message(0, 10, first=True, **SELDOM))
    at = page.locator(".at")
    for step in (4, 7, 10):  # one a second
        assert at.inner_text() == f"step {step} of 10"
        page.clock.run_for(1_000)
    send(page, message(10, 10, **SELDOM))
    assert at.inner_text() == "step 14 of 20"
    send(page, message(20, 5, total=25, running=False))
    page.clock.run_for(1_500)
    assert at.inner_text() == "step 25 of 25"
    send(page, message(0, 10, first=True, epoch="2", **SELDOM))
    page.get_by_role("button", name="Previous step").click()
    page.clock.run_for(1_500)
    assert at.inner_text() == "step 3 of 10"


def test_2048_nodes_are_painted_and_the_wheel_zooms_in(page) -> None:
    parents = [-1, *[node // 4 for node in range(2047)]]
    tree = {"index": 0, "parents": parents, "across": [node % 600 for node in range(2048)]}
    step = {name: [0.5] * 2048 for name in ("draft", "target")} | {"tokens": ["t"] * 2048, "outcomes": "A" * 2048}
    start(page, recorded(step, step, tree=tree))
    assert page.locator(".field").evaluate(PAINTED) and page.locator(".at").inner_text() == "step 2 of 2"
    assert len(drawn(page)) == 2049 and page.locator(".map").is_hidden()
    page.locator(".field").hover(position={"x": 400, "y": 200})
    for _ in range(8):
        page.mouse.wheel(0, -400)
    assert 0 < len(drawn(page)) < 1000 and page.locator(".map").is_visible()
    assert any(each["text"] == "t" for each in drawn(page))
    page.get_by_role("button", name="Fit").click()
    assert len(drawn(page)) == 2049


def test_keys_select_steps_and_nodes(page) -> None:
    shown(page, at=0)
    assert page.locator(".at").inner_text() == "step 1 of 2"  # the step of the link
    page.locator(".tt").focus()
    for key, at in (("Home", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 2)):
        page.keyboard.press(key)
        assert page.locator(".at").inner_text() == f"step {at} of 2"
    page.keyboard.press("ArrowDown")
    assert page.locator(".details h4").inner_text() == "r root"
    page.keyboard.press("ArrowDown")
    assert page.locator(".details h4").inner_text() == "wrong rejected"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.locator(".details h4").inner_text() == "bonus bonus token"
    page.keyboard.press("Space")
    assert page.locator(".play").inner_text().endswith("Pause")


def test_a_token_is_found_and_the_picture_is_saved(page, tmp_path) -> None:
    shown(page)
    page.locator(".tt").press("/")
    page.keyboard.type("RIGHT")
    assert page.locator(".matches").inner_text() == "1 found"
    page.keyboard.press("Enter")
    assert page.locator(".details h4").inner_text() == "right accepted"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert "next rejected guess" in page.locator(".keys").inner_text()
    page.keyboard.press("r")
    assert page.locator(".details h4").inner_text() == "below rejected"
    saved = {}
    for name in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / name)
        saved[name] = (tmp_path / name).read_bytes()
    texts = [each for each in ElementTree.fromstring(saved["SVG"]) if each.tag.endswith("text")]
    lengths = {"".join(text.itertext()): float(text.get("textLength")) for text in texts}
    assert {"r", "wrong", "right", "below", "bonus", "q .30 p .10"} < {*lengths}
    assert all(0 < lengths[box["text"]] < box["width"] for box in drawn(page))
    assert saved["PNG"][1:4] == b"PNG"


def test_a_finished_run_plays_by_itself_until_a_click(page) -> None:
    stop_clock(page)
    shown(page, plays=True)
    assert page.locator(".at").inner_text() == "step 1 of 2" and page.locator(".speed").input_value() == "Each decision"
    page.clock.run_for(1_800)
    assert page.locator(".details h4").inner_text() == "wrong rejected"
    point_at(page, text="below")
    page.clock.run_for(9_000)
    assert page.locator(".at").inner_text() == "step 1 of 2"
    assert page.locator(".details h4").inner_text() == "below rejected"


def test_the_player_pauses_steps_and_resumes_a_run(page) -> None:
    start(page, message(0, 3, first=True, total=3))
    play, at = page.locator(".play"), page.locator(".at")
    assert play.inner_text().endswith("Pause")
    play.click()
    send(page, message(3, 1, total=4, held=4))
    assert play.inner_text().endswith("Play") and "Paused after step 4" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Next step").click()
    send(page, message(4, 1, total=5, held=5))
    assert at.inner_text() == "step 5 of 5"
    page.get_by_role("button", name="Previous step").click()  # does not concern the engine
    page.get_by_role("button", name="Next step").click()
    assert at.inner_text() == "step 5 of 5"
    page.keyboard.press("Space")  # a clicked button does not receive the key
    assert page.evaluate("window.asked") == [{"hold": True}, {"next": 4}, {"on": True}]


def test_a_random_decision_is_explained_with_r_only_if_it_mattered(page) -> None:
    shown(page)
    wrong = describe(page, "wrong")
    assert "Target 10% ÷ draft 50%: accepted in 20% of draws. The draft proposes" in wrong and "r =" not in wrong
    page.get_by_text("Show the arithmetic").click()
    assert "r = 0.900 was drawn, not below 0.200: rejected." in page.locator(".details").inner_text()
    right = describe(page, "right")
    assert "The target's remaining probability 80% ÷ the draft's remaining 40%: always accepted." in right
    assert "r =" not in right
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".details table").first.locator("tr").all()[1:]]
    assert rows == [["wrong", "10%", "50%", "20%", "0.900", "✗"], ["right", "80%", "40%", "100%", "", "✓"]]
    shown(page, greedy=True)
    assert "only the target's most likely token counts: rejected" in describe(page, "wrong")


def test_on_a_phone_the_tree_shows_the_end_of_the_path(page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    parents = list(range(-1, 9))
    chain = {
        "tokens": [f"word{node}" for node in parents], "outcomes": "A" * 10, "draft": [0.5] * 10, "target": [0.5] * 10,
        "path": list(range(10)), "pieces": ["x"], "trials": [],
    }  # fmt: skip
    start(page, recorded(chain, tree={"index": 0, "parents": parents, "across": [0] * 10}))
    shown = {each["node"]: each for each in drawn(page)}
    assert 0 not in shown and 0 < shown["bonus"]["x"] < 390 and "…" not in "".join(each["text"] for each in drawn(page))
    assert page.evaluate("document.documentElement.scrollWidth <= 390")


STAR = [-1, 0, 0, 1, 2], [0.5, 0, 1, 0, 1], "AARRN", [0, 1]
CHAIN = [*range(-1, 23)], [0] * 24, "A" * 24, [*range(24)]  # its columns are narrower than its words


@pytest.mark.parametrize(("parents", "across", "outcomes", "path"), [STAR, CHAIN])
def test_the_bonus_token_and_the_words_overlap_nothing(parents, across, outcomes, path, page) -> None:
    words = [f"word{node}" for node in range(len(parents))]
    step = {
        "tokens": words, "outcomes": outcomes, "draft": [0.5] * len(words), "target": [0.5] * len(words),
        "path": path, "pieces": [*words[1 : len(path)], "bonus"], "trials": [],
    }  # fmt: skip
    start(page, recorded(step, tree={"index": 0, "parents": parents, "across": across}))
    boxes, height = drawn(page), page.locator(".field").bounding_box()["height"]
    assert {box["text"] for box in boxes} == {*words, "bonus"} and len(boxes) == len(words) + 1
    for i, one in enumerate(boxes):
        assert one["height"] / 2 <= one["y"] <= height - one["height"] / 2
        for other in boxes[:i]:
            apart_x = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart_x or abs(one["y"] - other["y"]) >= (one["height"] + other["height"]) / 2
