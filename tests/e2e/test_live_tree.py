"""The live tree's script alone in a browser page, fed by hand with what a busy server may send."""

from __future__ import annotations

from itertools import pairwise

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
WALKED = {  # the first child is rejected, the second accepted, and the one below it rejected
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


def place(page, *messages: dict) -> None:
    """Begin anew with these messages."""
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    page.evaluate("window.asked = []")
    send(page, *messages)


def recorded(*steps: dict, tree: dict = TREE, **about) -> dict:
    """Return the message of a whole run with these steps."""
    every = [WALKED | {"index": index, "finished": None} | step for index, step in enumerate(steps)]
    sent = message(0, 0, first=True, total=len(steps), running=False, shapes=[tree], steps=every)
    sent["about"] |= about
    return sent


def shown(page, **about) -> None:
    """Show a run of two steps; the second is the last."""
    place(page, recorded({}, {"finished": "length"}, **{"greedy": False} | about))


def stand_still(page) -> None:
    """Let time pass only as told."""
    page.clock.install(time="2026-01-01T00:00:00Z")
    page.clock.pause_at("2026-01-02T00:00:00Z")


def states(page) -> dict[str, str]:
    """Return the state that each token's node is drawn in."""
    found = page.locator(".nodes .node:not([hidden])")
    return {node.locator("text").first.text_content(): node.get_attribute("class") for node in found.all()}


def said_of(page, text: str) -> str:
    """Return what is said of a node."""
    page.locator(".nodes .node", has_text=text).first.click()
    return page.locator(".details").inner_text()


CHANGING = """
async ([script, messages]) => {
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const parentElement = document.getElementById("place")
  parentElement.querySelector(".tt").dataset.tag = "root"
  const seen = []
  let id = 0
  for (const data of messages) {
    module.default({ data, parentElement, setTriggerValue: () => {} })
    const nodes = [...parentElement.querySelectorAll(".nodes .node:not(.bonus)")]
    for (const node of nodes) node.dataset.id ??= String(id++)
    seen.push(Object.fromEntries(nodes.map((node) => [node.querySelector("text").textContent, node.dataset.id])))
  }
  return { seen, tag: parentElement.querySelector(".tt").dataset.tag,
    edges: parentElement.querySelectorAll(".edges path").length,
    glides: parentElement.querySelector(".graph").classList.contains("glide") }
}
"""
SHAPES = [  # the node r.2.1 of the first has another number in the second
    {"index": 0, "parents": [-1, 0, 0, 2], "across": [0.5, 0, 1, 1]},
    {"index": 1, "parents": [-1, 0, 0, 1, 2, 2], "across": [0.75, 0, 1.5, 0, 1, 2]},
    {"index": 2, "parents": [-1], "across": [0]},
]
NAMES = [["r", "r1", "r2", "r21"], ["r", "r1", "r2", "r11", "r21", "r22"], ["r"]]


def test_a_node_keeps_its_element_while_its_path_is_in_the_tree(page) -> None:
    """Trees may differ from step to step: nothing is drawn anew that is still there."""
    order = [0, 1, 0, 2, 1]
    messages = []
    for index, shape in enumerate(order):
        size = len(NAMES[shape])
        sent = message(index, 1, first=index == 0) | {"shapes": [SHAPES[shape]] if shape not in order[:index] else []}
        sent["steps"][0] |= {"shape": shape, "tokens": NAMES[shape], "outcomes": "A" + "N" * (size - 1)}
        sent["steps"][0] |= {"draft": [0.5] * size, "target": [0.5] * size}
        messages.append(sent)
    page.set_content(f'<div id="place">{HTML}</div>')
    found = page.evaluate(CHANGING, [SCRIPT, messages])
    seen = found["seen"]
    assert [sorted(step) for step in seen] == [sorted(NAMES[shape]) for shape in order]
    for before, after in pairwise(seen):
        common = before.keys() & after.keys()
        assert {name: before[name] for name in common} == {name: after[name] for name in common}
    assert found["tag"] == "root" and found["edges"] == 5 and found["glides"]


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
ASKED = {  # what the script got, how long it then waited, and from which step on it asked to be told again
    "a step whose shape was lost": ([message(0, 1, first=True), LOST_SHAPE, message(4, 1)], 0, [1]),
    "a lost beginning, twice a second until it comes": (LOST, 1_200, [0, 0, 0]),
    "a lost step, not by every message": ([message(0, 2, first=True), *LOST], 0, [2]),
    "and not for ever": ([message(0, 2, first=True), *LOST], 8_000, [2] * 12),
    "the rest of a run that is over": (PARTS[:1], 700, [20, 20]),
    "of which a message holds a part": ([*PARTS[:2], message(40, 10, running=False)], 1_200, [20, 40]),
    "no tables while the run goes on": ([LEAN], 700, []),
    "steps that came without their tables": ([LEAN, ENDED], 700, [0, 0]),
    "not when a new run has begun": ([LEAN, ENDED, BEGUN | {"epoch": "next"}], 1_200, [0]),
    "nothing of a run that has begun": ([BEGUN], 1_500, []),
    "but once of one that is looked at seldom": ([BEGUN | SELDOM], 3_000, [0]),
}


def test_what_a_busy_server_lost_is_asked_for(page) -> None:
    """It drops messages that newer ones replace, answers to earlier requests among them."""
    stand_still(page)
    for case, (messages, wait_ms, asked) in ASKED.items():
        page.goto("about:blank")
        place(page)
        for each in messages:
            send(page, each)
            page.clock.run_for(5)
        page.clock.run_for(wait_ms)
        assert page.evaluate("window.asked") == [["resync", have] for have in asked], case


def test_steps_that_come_at_once_are_shown_in_turn_until_the_run_ends_or_someone_looks_back(page) -> None:
    stand_still(page)
    place(page, message(0, 10, first=True, **SELDOM))
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


def test_2048_nodes_are_painted_on_one_canvas(page) -> None:
    parents = [-1, *[node // 4 for node in range(2047)]]
    tree = {"index": 0, "parents": parents, "across": [node % 600 for node in range(2048)]}
    step = {name: [0.5] * 2048 for name in ("draft", "target")} | {"tokens": ["t"] * 2048, "outcomes": "A" * 2048}
    place(page, recorded(step, step, tree=tree))
    assert page.locator(".graph").is_hidden() and not page.locator(".nodes .node:not(.bonus)").count()
    assert page.locator(".field").evaluate(PAINTED) and page.locator(".at").inner_text() == "step 2 of 2"


def test_keys_go_from_step_to_step_and_from_node_to_node(page) -> None:
    shown(page, at=0)
    assert page.locator(".at").inner_text() == "step 1 of 2"  # where the link begins
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


def test_slow_play_shows_one_decision_after_the_other(page) -> None:
    stand_still(page)
    shown(page, at=0)
    page.get_by_role("combobox", name="Speed").select_option("Each decision")
    page.get_by_role("button", name="Play").click()
    seen = []
    for _ in range(6):
        seen.append((page.locator(".caption").inner_text(), states(page), page.locator(".at").inner_text()))
        page.clock.run_for(900 if len(seen) > 1 else 1_800)
    drafted, first, second, third, bonus, following = seen
    assert "the draft has proposed 3 tokens" in drafted[0] and "bonus" not in drafted[1]
    assert set(drafted[1].values()) == {"node accepted root", "node unreached"}
    assert first[0].endswith("“wrong” is rejected.") and first[1]["wrong"] == "node rejected"
    assert first[1]["right"] == "node unreached"
    assert second[0].endswith("“right” is accepted.") and second[1]["right"] == "node accepted"
    assert third[1]["below"] == "node rejected" and "bonus" not in third[1]
    assert "adds “bonus”" in bonus[0] and bonus[1]["bonus"] == "node bonus"
    assert following[2] == "step 2 of 2" and following[1]["right"] == "node unreached"


def test_a_run_that_is_over_plays_itself_slowly_from_its_first_step(page) -> None:
    stand_still(page)
    shown(page, plays=True)
    assert page.locator(".at").inner_text() == "step 1 of 2" and page.locator(".speed").input_value() == "Each decision"
    page.clock.run_for(1_800)
    assert page.locator(".details h4").inner_text() == "wrong rejected"  # the explanation follows
    page.locator(".nodes .node", has_text="below").click()
    page.clock.run_for(9_000)
    assert page.locator(".at").inner_text() == "step 1 of 2", "a click stops it"
    assert page.locator(".details h4").inner_text() == "below rejected", "what is said of it is of the whole step"


def test_one_transport_holds_a_run_takes_a_step_and_lets_it_go(page) -> None:
    place(page, message(0, 3, first=True, total=3))
    play, at = page.locator(".play"), page.locator(".at")
    assert play.inner_text().endswith("Pause")
    play.click()
    send(page, message(3, 1, total=4, held=4))
    assert play.inner_text().endswith("Play") and "Paused after step 4" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Next step").click()
    send(page, message(4, 1, total=5, held=5))
    assert at.inner_text() == "step 5 of 5"
    page.get_by_role("button", name="Previous step").click()  # back in what was decoded: the engine is not asked
    page.get_by_role("button", name="Next step").click()
    assert at.inner_text() == "step 5 of 5"
    page.keyboard.press("Space")  # a button that was clicked does not keep the key
    assert page.evaluate("window.asked") == [{"hold": True}, {"next": 4}, {"on": True}]


def test_a_decision_by_chance_is_told_in_words_and_with_r_only_where_it_decided(page) -> None:
    shown(page)
    wrong = said_of(page, "wrong")
    assert "Target 10% ÷ draft 50%: accepted in 20% of draws. The draft proposes" in wrong and "r =" not in wrong
    page.get_by_text("Show the arithmetic").click()
    assert "r = 0.900 was drawn, not below 0.200: rejected." in page.locator(".details").inner_text()
    right = said_of(page, "right")
    assert "What is left of the target's probability 80% ÷ of the draft's 40%: always accepted." in right
    assert "r =" not in right
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".details table").first.locator("tr").all()[1:]]
    assert rows == [["wrong", "10%", "50%", "20%", "0.900", "✗"], ["right", "80%", "40%", "100%", "", "✓"]]
    shown(page, greedy=True)
    assert "only the target's most likely token counts: rejected" in said_of(page, "wrong")


def test_a_button_goes_from_one_rejected_guess_to_the_next(page) -> None:
    shown(page)
    for place in ("2 wrong", "2 below", "1 wrong", "1 below", "2 wrong"):
        page.get_by_role("button", name="Next rejected").click()
        step, word = place.split()
        assert page.locator(".tt .at").inner_text() == f"step {step} of 2"
        assert page.locator(".details h4").inner_text() == f"{word} rejected"


def test_on_a_phone_the_tree_scrolls_sideways_to_where_the_step_is(page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    parents = list(range(-1, 9))
    chain = {
        "tokens": [f"word{node}" for node in parents], "outcomes": "A" * 10, "draft": [0.5] * 10, "target": [0.5] * 10,
        "path": list(range(10)), "pieces": ["x"], "trials": [],
    }  # fmt: skip
    place(page, recorded(chain, tree={"index": 0, "parents": parents, "across": [0] * 10}))
    stage, bonus = page.locator(".stage"), page.locator(".node.bonus")
    assert stage.evaluate("stage => stage.scrollWidth > 2 * stage.clientWidth && stage.scrollLeft > 300")
    assert bonus.bounding_box()["x"] < 390 and "…" not in "".join(page.locator(".nodes text").all_text_contents())
    assert page.evaluate("document.documentElement.scrollWidth <= 390")


def test_why_it_stopped_and_why_the_run_ended(page) -> None:
    shown(page)
    words = page.locator(".details").inner_text()
    assert "Why did it stop here?" in words and "1 of 3 drafted tokens accepted" in words
    assert "the one child was rejected" in words and "as many tokens as were asked for" in words
    assert page.locator(".left-out").is_hidden() and "Expected to add" not in said_of(page, "right")


def test_where_the_time_went_is_charted_step_by_step(page) -> None:
    shown(page, at=0)
    page.locator(".times summary").click()
    page.locator(".growth-key", has_text="in the mean").wait_for()
    assert page.locator(".growth-key").inner_text().split("\n") == [
        "n = 4 nodes, in every step", "2 tokens in this step, 2.00 in the mean (line)",
    ]  # fmt: skip
    assert page.locator(".growth").evaluate(PAINTED)
    phases = page.locator(".phases")
    assert phases.inner_text().startswith("draft 1.0 ms") and "read" not in phases.inner_text()
    send(page, recorded({"read_wait_sec": 0.003}) | {"epoch": "2"})  # waiting for weights has a lane of its own
    words = phases.inner_text()
    assert "read 3.0 ms" in words and "verify 1.0 ms" in words and "= 7.0 ms for 2 tokens" in words


MARGINAL = {
    "gains": [1.0, 0.6, 0.3, 0.02], "costs": [None, 0.05, 0.04, 0.03], "next_cost": 0.025,
    "left_out": [
        {"parent": 3, "text": None, "gain": 0.019}, {"parent": 2, "text": "<b>other", "gain": 0.01},
    ],
}  # fmt: skip


def test_each_node_says_what_it_adds_and_costs(page) -> None:
    place(page, recorded({"marginal": MARGINAL}))
    page.get_by_text("Show the arithmetic").click()
    words = said_of(page, "wrong")
    assert "Expected to add f = 0.600 tokens; its marginal cost is 0.050 tokens." in words and "Less" not in words
    assert "its marginal cost is 0.030 tokens. Less than it costs" in said_of(page, "below")
    assert "Expected to add" not in said_of(page, "bonus")


def test_what_was_left_out_is_one_click_away_and_stays_open_from_step_to_step(page) -> None:
    later = MARGINAL | {"left_out": MARGINAL["left_out"][1:]}
    place(page, recorded({"marginal": MARGINAL}, {"marginal": later}))
    page.locator(".tt").focus()
    page.keyboard.press("Home")
    box = page.locator(".left-out")
    table = box.locator("tr")
    box.locator("summary").click()
    assert "One more node would cost 0.025 tokens" in box.inner_text()
    cells = [[cell.inner_text() for cell in row.locator("td").all()] for row in table.all()[1:]]
    assert cells == [["below", "a first child, not drafted", "0.019"], ["right", "<b>other", "0.010"]]
    page.locator(".tt").focus()
    page.keyboard.press("End")
    assert table.count() == 2 and table.nth(1).is_visible()


def test_the_bonus_token_covers_no_drafted_node(page) -> None:
    """Every row of the next column is taken: it stands above or below them."""
    star = {"index": 0, "parents": [-1, 0, 0, 1, 2], "across": [0.5, 0, 1, 0, 1]}
    step = {
        "tokens": list("rabcd"), "outcomes": "AARRN", "draft": [0.5] * 5, "target": [0.5] * 5, "path": [0, 1],
        "pieces": ["a", "bonus"], "trials": [[1, 0, 1, 1], [3, 1, 0, 1]],
    }  # fmt: skip
    place(page, recorded(step, tree=star))
    boxes = [box.bounding_box() for box in page.locator(".nodes .box").all()]
    stage = page.locator(".graph").bounding_box()
    assert len(boxes) == 6
    for i, one in enumerate(boxes):
        assert stage["y"] <= one["y"] and one["y"] + one["height"] <= stage["y"] + stage["height"]
        for other in boxes[:i]:
            apart_x = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart_x or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
