"""The live tree's script alone in a browser page, fed by hand with what a busy server may send."""

from __future__ import annotations

from itertools import pairwise

from ui.token_tree import CSS, HTML, SCRIPT

from .browser import heap_mb

ABOUT = {"prompt": "p", "greedy": True, "after_rejection": "", "at": None, "link": None}
FEED = """
async ([script, messages, waitMs]) => {
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const parentElement = document.getElementById("place")
  const asked = []
  for (const data of messages) {
    module.default({ data, parentElement, setTriggerValue: (name, value) => asked.push([name, value.have]) })
    await new Promise((done) => setTimeout(done, 5))
  }
  await new Promise((done) => setTimeout(done, waitMs))
  return { asked, nodes: parentElement.querySelectorAll(".nodes .node").length }
}
"""


def message(start: int, count: int, *, first: bool, total: int = 50, running: bool = True) -> dict:
    step = {
        "shape": 0,
        "tokens": ["a", "b"],
        "outcomes": "AN",
        "draft": [1, 0.5],
        "target": [1, 0.5],
        "path": [0],
        "bonus": "c",
    }
    steps = [
        step | {"index": start + i, "pieces": ["c"], "trials": [], "seconds": [0.1] * 4, "finished": None}
        for i in range(count)
    ]
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
    }


def feed(page, messages: list[dict], wait_ms: int = 0) -> dict:
    """Return what the script asked for, and how many nodes it shows, so long after the last message."""
    page.set_content(f'<div id="place">{HTML}</div>')
    return page.evaluate(FEED, [SCRIPT, messages, wait_ms])


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


def test_a_step_whose_shape_was_lost_is_asked_for(page) -> None:
    lost = message(1, 1, first=False)
    lost["steps"][0]["shape"] = 1
    assert feed(page, [message(0, 1, first=True), lost, message(4, 1, first=False)])["asked"] == [["resync", 1]]


def test_a_lost_beginning_is_asked_for_until_it_comes(page) -> None:
    """A busy server drops messages that newer ones replace, answers to earlier requests among them."""
    lost = [message(9, 1, first=False)] * 12
    assert feed(page, lost, wait_ms=1_200) == {"asked": [["resync", 0]] * 3, "nodes": 0}  # twice a second
    seen = feed(page, [*lost, message(0, 50, first=True)], wait_ms=1_200)
    assert len(seen["asked"]) == 1 and seen["nodes"] == 3  # two nodes and the bonus token


def test_a_lost_step_is_asked_for_again_but_not_by_every_message_and_not_for_ever(page) -> None:
    """The server may no longer have it; while it is slow to answer, messages go on arriving."""
    lost = [message(0, 2, first=True), *[message(9, 1, first=False)] * 12]
    assert feed(page, lost)["asked"] == [["resync", 2]]
    assert feed(page, lost, wait_ms=700)["asked"] == [["resync", 2]] * 2
    assert feed(page, lost, wait_ms=8_000)["asked"] == [["resync", 2]] * 12


def test_a_run_that_is_over_is_fetched_to_its_end(page) -> None:
    """A message holds only so many steps of a large tree: the rest is asked for until all are there."""
    parts = [message(start, 20, first=start == 0, running=False) for start in (0, 20, 40)]
    assert feed(page, parts[:1], wait_ms=700)["asked"] == [["resync", 20]] * 2
    seen = feed(page, [*parts[:2], message(40, 10, first=False, running=False)], wait_ms=1_200)
    assert seen["asked"] == [["resync", 20], ["resync", 40]]


def test_steps_that_came_without_their_tables_are_asked_for_when_the_run_has_ended(page) -> None:
    lean = message(0, 3, first=True)
    for step in lean["steps"][:2]:
        step["lean"] = True
    ended = message(3, 1, first=False, total=4, running=False)
    assert feed(page, [lean], wait_ms=700)["asked"] == []
    assert feed(page, [lean, ended], wait_ms=700)["asked"] == [["resync", 0]] * 2
    whole = message(0, 4, first=False, total=4, running=False)
    assert feed(page, [lean, ended, whole], wait_ms=1_200)["asked"] == [["resync", 0]]


def test_a_run_that_is_looked_at_seldom_is_asked_for_once_soon_after_it_began(page) -> None:
    begun = message(0, 0, first=True, total=0)
    assert feed(page, [begun], wait_ms=1_500)["asked"] == []
    assert feed(page, [begun | {"interval_sec": 3.0}], wait_ms=3_000)["asked"] == [["resync", 0]]
    ended = message(0, 2, first=False, total=2, running=False)
    assert feed(page, [begun | {"interval_sec": 3.0}, ended], wait_ms=1_500)["asked"] == []


def test_a_new_run_may_begin_while_a_step_of_the_last_one_is_waited_for(page) -> None:
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    lean = message(0, 3, first=True)
    lean["steps"][1]["lean"] = True
    ended = message(3, 1, first=False, total=4, running=False)
    begun = message(0, 0, first=True, total=0) | {"epoch": "next"}
    assert feed(page, [lean, ended, begun], wait_ms=1_200)["asked"] == [["resync", 1]] and not faults


def test_steps_that_come_at_once_are_shown_in_turn_until_the_run_ends_or_someone_looks_back(page) -> None:
    place(page, message(0, 10, first=True) | {"interval_sec": 3.0})
    at = page.locator(".at")
    assert at.inner_text() == "step 4 of 10"
    for step in (7, 10):  # one a second
        at.get_by_text(f"step {step} of 10").wait_for()
    page.evaluate(PLAYED, [SCRIPT, [message(10, 10, first=False) | {"interval_sec": 3.0}]])
    at.get_by_text("step 14 of 20").wait_for()
    page.evaluate(PLAYED, [SCRIPT, [message(20, 5, first=False, total=25, running=False)]])
    at.get_by_text("step 25 of 25").wait_for()
    page.wait_for_timeout(1_500)
    assert at.inner_text() == "step 25 of 25"
    page.evaluate(PLAYED, [SCRIPT, [message(0, 10, first=True) | {"interval_sec": 3.0, "epoch": "2"}]])
    page.get_by_role("button", name="Previous step").click()
    page.wait_for_timeout(1_500)
    assert at.inner_text() == "step 3 of 10"


OFTEN = """
async ([script, shape, messages, each, pauseMs]) => {
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const parentElement = document.getElementById("place")
  const size = shape.parents.length
  const about = { prompt: "p", greedy: true, after_rejection: "", at: null, link: null }
  const some = () => shape.parents.map(() => Math.random())
  const step = (index) => ({ index, shape: 0, tokens: shape.parents.map((_, node) => `t${node % 50}`), path: [0, 1],
    outcomes: "AA" + "N".repeat(size - 2), draft: some(), target: some(), bonus: "b", pieces: ["t", "b"], trials: [],
    seconds: [0.1, 0.1, 0.1, 0.1], finished: null })
  for (let number = 0; number < messages; number++) {
    const steps = Array.from({ length: each }, (_, at) => step(number * each + at))
    const first = number ? { about: null, shapes: [] } : { about, shapes: [shape] }
    const data = { epoch: "run", ...first, from: number * each, steps, total: (number + 1) * each, running: true,
      waiting: "", interval_sec: 0 }
    module.default({ data, parentElement, setTriggerValue: () => {} })
    if (!number) for (const node of parentElement.querySelectorAll(".node:not(.bonus)")) node.dataset.tag = "kept"
    await new Promise((done) => setTimeout(done, pauseMs))
  }
  const nodes = [...parentElement.querySelectorAll(".node:not(.bonus)")]
  const kept = nodes.filter((node) => node.dataset.tag === "kept")
  return [nodes.length, kept.length, parentElement.querySelector(".at").textContent]
}
"""


def test_six_updates_a_second_of_500_steps_of_1024_nodes_draw_nothing_anew(page) -> None:
    parents = [-1, *[node // 4 for node in range(1023)]]
    shape = {"index": 0, "parents": parents, "across": [node % 300 for node in range(1024)]}
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    before = heap_mb(page)
    found = page.evaluate(OFTEN, [SCRIPT, shape, 63, 8, 1000 // 6])
    assert found == [1024, 1024, "step 504 of 504"]
    assert heap_mb(page) - before < 60  # 504 steps of 1,024 nodes, two numbers and a text each


STEPPED = """
() => {
  const button = document.querySelector(".prev")
  return Array.from({ length: 7 }, () => {
    const started = performance.now()
    button.click()
    return performance.now() - started
  }).sort((one, other) => one - other)[3]
}
"""


def test_2048_nodes_are_painted_on_one_canvas_without_delay(page) -> None:
    parents = [-1, *[node // 4 for node in range(2047)]]
    shape = {"index": 0, "parents": parents, "across": [node % 600 for node in range(2048)]}
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    assert page.evaluate(OFTEN, [SCRIPT, shape, 8, 8, 20]) == [0, 0, "step 64 of 64"]  # no element for any node
    assert page.locator(".graph").is_hidden() and page.locator(".field").evaluate(PAINTED)
    assert page.evaluate(STEPPED) < 250  # milliseconds
    assert page.locator(".at").inner_text() == "step 57 of 64"


PLAYED = """
async ([script, messages]) => {
  window.tree ??= await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  for (const data of messages) {
    window.tree.default({ data, parentElement: document.getElementById("place"), setTriggerValue: () => {} })
  }
}
"""
PAINTED = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(v => v)"
TREE = {"index": 0, "parents": [-1, 0, 0, 2], "across": [0.5, 0, 1, 1]}
WALKED = {  # the first child is rejected, the second accepted, and the one below it rejected
    "shape": 0, "tokens": ["r", "wrong", "right", "below"], "outcomes": "ARAR", "draft": [1, 0.5, 0.4, 0.3],
    "target": [1, 0.1, 0.8, 0.1], "path": [0, 2], "bonus": "bonus", "pieces": ["right", "bonus"],
    "trials": [[1, 0.9, 0.1, 0.5], [2, 0.2, 0.8, 0.4], [3, 0.7, 0.1, 0.3]], "seconds": [0.001, 0.004, 0.001, 0.001],
}  # fmt: skip


def place(page, *messages) -> None:
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    page.evaluate(PLAYED, [SCRIPT, [*messages]])


def shown(page, **about) -> None:
    """Show a run of two steps; the second is the last."""
    steps = [WALKED | {"index": index, "finished": end} for index, end in enumerate((None, "length"))]
    sent = message(0, 0, first=True, total=2, running=False) | {"shapes": [TREE], "steps": steps}
    sent["about"] |= {"greedy": False, **about}
    place(page, sent)


def states(page) -> dict[str, str]:
    """Return the state that each token's node is drawn in."""
    found = page.locator(".nodes .node:not([hidden])")
    return {node.locator("text").first.text_content(): node.get_attribute("class") for node in found.all()}


def test_a_link_begins_at_its_step(page) -> None:
    shown(page, at=0)
    assert page.locator(".at").inner_text() == "step 1 of 2"
    shown(page)
    assert page.locator(".at").inner_text() == "step 2 of 2"


def test_keys_go_from_step_to_step_and_from_node_to_node(page) -> None:
    shown(page)
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
    page.clock.install(time="2026-01-01T00:00:00Z")
    shown(page, at=0)
    page.get_by_role("combobox", name="Speed").select_option("Each decision")
    page.clock.pause_at("2026-01-02T00:00:00Z")  # from here on time passes only as told
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
    page.clock.install(time="2026-01-01T00:00:00Z")
    page.clock.pause_at("2026-01-02T00:00:00Z")
    shown(page, plays=True)
    assert page.locator(".at").inner_text() == "step 1 of 2" and page.locator(".speed").input_value() == "Each decision"
    page.clock.run_for(1_800)
    assert page.locator(".details h4").inner_text() == "wrong rejected"  # the explanation follows
    page.locator(".nodes .node", has_text="below").click()
    page.clock.run_for(9_000)
    assert page.locator(".at").inner_text() == "step 1 of 2", "a click stops it"
    assert page.locator(".details h4").inner_text() == "below rejected", "what is said of it is of the whole step"
    page.emulate_media(reduced_motion="reduce")
    shown(page, plays=True)
    assert page.locator(".at").inner_text() == "step 2 of 2"


def test_at_true_speed_steps_last_as_long_as_they_did(page) -> None:
    page.clock.install(time="2026-01-01T00:00:00Z")
    steps = [WALKED | {"index": index, "finished": None, "seconds": [0.5, 0.5, 0.0, 0.0]} for index in range(4)]
    sent = message(0, 0, first=True, total=4, running=False) | {"shapes": [TREE], "steps": steps}
    sent["about"]["at"] = 0
    place(page, sent)
    page.get_by_role("combobox", name="Speed").select_option("True speed")
    page.clock.pause_at("2026-01-02T00:00:00Z")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2_100)
    assert page.locator(".at").inner_text() == "step 3 of 4"
    page.get_by_role("combobox", name="Speed").select_option("1/10 speed")
    page.clock.run_for(9_000)
    assert page.locator(".at").inner_text() == "step 3 of 4"
    short = [WALKED | {"index": index, "finished": None, "seconds": [0.002] * 4} for index in range(90)]
    place(page, sent | {"epoch": "2", "steps": short, "total": 90})
    page.get_by_role("combobox", name="Speed").select_option("True speed")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(400)  # 50 steps of 8 ms, more than can be drawn
    assert 40 <= int(page.locator(".scrub").input_value()) <= 50


WISHES = """
async ([script, messages]) => {
  window.tree ??= await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  window.wishes ??= []
  const setTriggerValue = (name, wish) => name === "steer" && window.wishes.push(wish)
  const parentElement = document.getElementById("place")
  for (const data of messages) window.tree.default({ data, parentElement, setTriggerValue })
}
"""


def test_one_transport_holds_a_run_takes_a_step_and_lets_it_go(page) -> None:
    page.set_content(f"<style>{CSS}</style><div id=place>{HTML}</div>")
    page.evaluate(WISHES, [SCRIPT, [message(0, 3, first=True, total=3)]])
    play, at = page.locator(".play"), page.locator(".at")
    assert play.inner_text().endswith("Pause")
    play.click()
    page.evaluate(WISHES, [SCRIPT, [message(3, 1, first=False, total=4) | {"held": 4}]])
    assert play.inner_text().endswith("Play") and "Paused after step 4" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Next step").click()
    page.evaluate(WISHES, [SCRIPT, [message(4, 1, first=False, total=5) | {"held": 5}]])
    assert at.inner_text() == "step 5 of 5"
    page.get_by_role("button", name="Previous step").click()  # back in what was decoded: the engine is not asked
    page.get_by_role("button", name="Next step").click()
    assert at.inner_text() == "step 5 of 5"
    page.keyboard.press("Space")  # a button that was clicked does not keep the key
    assert page.evaluate("window.wishes") == [{"hold": True}, {"next": 4}, {"on": True}]


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


def test_a_button_goes_from_one_rejected_guess_to_the_next(page) -> None:
    shown(page)
    for place in ("2 wrong", "2 below", "1 wrong", "1 below", "2 wrong"):
        page.get_by_role("button", name="Next rejected").click()
        step, word = place.split()
        assert page.locator(".tt .at").inner_text() == f"step {step} of 2"
        assert page.locator(".details h4").inner_text() == f"{word} rejected"


def test_at_temperature_0_no_r_is_told(page) -> None:
    shown(page, greedy=True)
    assert "only the target's most likely token counts: rejected" in said_of(page, "wrong")
    assert page.locator(".details table").first.locator("th").all_text_contents() == ["token", "target", "draft", ""]


def test_full_screen_fills_a_projector_and_ends(page) -> None:
    page.set_viewport_size({"width": 1920, "height": 1080})
    shown(page)
    page.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement?.className.includes('tt')")
    page.wait_for_timeout(500)
    main = page.locator(".main").bounding_box()
    assert main["width"] > 1_800 and main["height"] > 800 and main["x"] + main["width"] <= 1_920
    page.locator(".nodes .node", has_text="wrong").hover()
    tip, node = page.locator(".tip").bounding_box(), page.locator(".nodes .node", has_text="wrong").bounding_box()
    assert abs(tip["x"] - node["x"]) < 60 and abs(tip["y"] - node["y"]) < 140
    page.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement === null")


def test_a_tree_of_few_rows_takes_the_whole_width(page) -> None:
    wide = {"index": 0, "parents": [-1, 0, 0, 0], "across": [0, 0, 1, 2]}
    for tree, is_flat in ((TREE, True), (wide, False)):
        sent = message(0, 0, first=True, total=1, running=False) | {"shapes": [tree]}
        sent["steps"] = [WALKED | {"index": 0, "finished": None}]
        place(page, sent)
        main, stage = (page.locator(part).bounding_box() for part in (".main", ".stage"))
        assert (stage["width"] == main["width"], stage["height"] == main["height"]) == (is_flat, not is_flat)


def test_on_a_phone_the_tree_scrolls_sideways_to_where_the_step_is(page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    parents = list(range(-1, 9))
    chain = {
        "tokens": [f"word{node}" for node in parents], "outcomes": "A" * 10, "draft": [0.5] * 10, "target": [0.5] * 10,
        "path": list(range(10)), "pieces": ["x"], "trials": [],
    }  # fmt: skip
    sent = message(0, 0, first=True, total=1, running=False) | {
        "steps": [WALKED | chain | {"index": 0, "finished": None}]
    }
    sent["shapes"] = [{"index": 0, "parents": parents, "across": [0] * 10}]
    place(page, sent)
    stage, bonus = page.locator(".stage"), page.locator(".node.bonus")
    assert stage.evaluate("stage => stage.scrollWidth > 2 * stage.clientWidth && stage.scrollLeft > 300")
    assert bonus.bounding_box()["x"] < 390 and "…" not in "".join(page.locator(".nodes text").all_text_contents())
    assert page.evaluate("document.documentElement.scrollWidth <= 390")


def test_why_it_stopped_and_why_the_run_ended(page) -> None:
    shown(page)
    words = page.locator(".details").inner_text()
    assert "Why did it stop here?" in words and "1 of 3 drafted tokens accepted" in words
    assert "the one child was rejected" in words and "as many tokens as were asked for" in words
    shown(page, at=0)
    assert "asked for" not in page.locator(".details").inner_text()


def test_the_trials_table_and_the_tree_point_at_each_other(page) -> None:
    shown(page)
    page.locator(".nodes .node", has_text="right").click()
    page.get_by_text("Show the arithmetic").click()
    row = page.locator(".details tr", has_text="wrong").first
    row.hover()
    assert "linked" in page.locator(".nodes .node", has_text="wrong").get_attribute("class")
    page.locator(".nodes .node", has_text="right").hover()
    assert "linked" in page.locator(".details tr", has_text="right").get_attribute("class")
    assert "linked" in page.locator(".body span", has_text="right").last.get_attribute("class")
    row.click()
    assert page.locator(".details h4").inner_text() == "wrong rejected"


def test_waiting_for_weights_is_a_lane_of_its_own_where_there_is_any(page) -> None:
    shown(page)
    page.locator(".times summary").click()
    assert page.locator(".phases").inner_text().split("\n")[0].startswith("draft 1.0 ms")
    assert "read" not in page.locator(".phases").inner_text()
    waited = WALKED | {"index": 0, "finished": None, "read_wait_sec": 0.003}
    sent = message(0, 0, first=True, total=1, running=False) | {"epoch": "2", "shapes": [TREE], "steps": [waited]}
    page.evaluate(PLAYED, [SCRIPT, [sent]])
    words = page.locator(".phases").inner_text()
    assert "read 3.0 ms" in words and "verify 1.0 ms" in words and "= 7.0 ms for 2 tokens" in words


MARGINAL = {
    "gains": [1.0, 0.6, 0.3, 0.02], "costs": [None, 0.05, 0.04, 0.03], "next_cost": 0.025,
    "left_out": [
        {"parent": 3, "text": None, "gain": 0.019}, {"parent": 2, "text": "<b>other", "gain": 0.01},
    ],
}  # fmt: skip


def shown_shaped(page, *found) -> None:
    """Show a run of trees that took shape in their steps, one step for each of the gains."""
    steps = [WALKED | {"index": index, "finished": None, "marginal": one} for index, one in enumerate(found)]
    sent = message(0, 0, first=True, total=len(steps), running=False) | {"shapes": [TREE], "steps": steps}
    place(page, sent)


def said_of(page, text: str) -> str:
    """Return what is said of a node."""
    page.locator(".nodes .node", has_text=text).first.click()
    return page.locator(".details").inner_text()


def test_a_head_says_what_each_guess_was_drafted_from(page) -> None:
    shown(page, head=True)
    page.get_by_text("Show the arithmetic").click()
    assert "from true states" in said_of(page, "wrong") and "guessed" in said_of(page, "below")
    shown(page)
    page.get_by_text("Show the arithmetic").click()
    assert "states" not in said_of(page, "wrong")


def test_each_node_says_what_it_adds_and_costs(page) -> None:
    shown_shaped(page, MARGINAL)
    page.get_by_text("Show the arithmetic").click()
    words = said_of(page, "wrong")
    assert "Expected to add f = 0.600 tokens; its marginal cost is 0.050 tokens." in words and "Less" not in words
    assert "its marginal cost is 0.030 tokens. Less than it costs" in said_of(page, "below")
    assert "Expected to add" not in said_of(page, "bonus")


def test_where_no_costs_are_counted_nodes_say_what_they_add(page) -> None:
    shown_shaped(page, MARGINAL | {"costs": [None] * 4, "next_cost": None})
    page.get_by_text("Show the arithmetic").click()
    assert "Expected to add f = 0.300 tokens.\n" in said_of(page, "right") + "\n"
    page.locator(".left-out summary").click()
    assert "The least of the tree's nodes is expected to add 0.020 tokens." in page.locator(".left-out").inner_text()


def test_what_was_left_out_is_one_click_away_and_stays_open_from_step_to_step(page) -> None:
    later = MARGINAL | {"left_out": MARGINAL["left_out"][1:]}
    shown_shaped(page, MARGINAL, later)
    page.locator(".tt").focus()
    page.keyboard.press("Home")
    box = page.locator(".left-out")
    table = box.locator("tr")
    assert not table.first.is_visible()
    box.locator("summary").click()
    assert box.locator("summary").inner_text() == "Left out of this step's tree: the best 2 candidates"
    assert "One more node would cost 0.025 tokens" in box.inner_text() and "a draft pass besides" in box.inner_text()
    cells = [[cell.inner_text() for cell in row.locator("td").all()] for row in table.all()[1:]]
    assert cells == [["below", "a first child, not drafted", "0.019"], ["right", "<b>other", "0.010"]]
    table.nth(2).hover()
    assert "linked" in page.locator(".nodes .node", has_text="right").get_attribute("class")
    table.nth(2).click()
    assert page.locator(".details h4").inner_text() == "right accepted"
    height = box.bounding_box()["height"]
    page.locator(".tt").focus()
    page.keyboard.press("End")
    assert box.locator("summary").inner_text() == "Left out of this step's tree: the best 1 candidate"
    assert "besides" not in box.inner_text()
    assert table.count() == 2 and table.nth(1).is_visible() and box.bounding_box()["height"] == height


def test_a_tree_that_was_given_leaves_nothing_out(page) -> None:
    shown(page)
    assert page.locator(".left-out").is_hidden()
    assert "Expected to add" not in said_of(page, "right")


def test_nodes_and_tokens_of_every_step_are_charted(page) -> None:
    shown(page, at=0)
    page.locator(".times summary").click()
    page.locator(".growth-key", has_text="in the mean").wait_for()
    assert page.locator(".growth-key").inner_text().split("\n") == [
        "n = 4 nodes, in every step", "2 tokens in this step, 2.00 in the mean (line)",
    ]  # fmt: skip
    assert page.locator(".growth").evaluate(PAINTED)
    box = page.locator(".growth").bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 40)  # columns are at most 16 px wide
    assert page.locator(".at").inner_text() == "step 2 of 2"


def test_the_bonus_token_covers_no_drafted_node(page) -> None:
    """Every row of the next column is taken: it stands above or below them."""
    star = {"index": 0, "parents": [-1, 0, 0, 1, 2], "across": [0.5, 0, 1, 0, 1]}
    step = {
        "tokens": list("rabcd"), "outcomes": "AARRN", "draft": [0.5] * 5, "target": [0.5] * 5, "path": [0, 1],
        "pieces": ["a", "bonus"], "trials": [[1, 0, 1, 1], [3, 1, 0, 1]],
    }  # fmt: skip
    sent = message(0, 0, first=True, total=1, running=False)
    sent |= {"shapes": [star], "steps": [WALKED | step | {"index": 0, "finished": None}]}
    place(page, sent)
    boxes = [box.bounding_box() for box in page.locator(".nodes .box").all()]
    stage = page.locator(".graph").bounding_box()
    assert len(boxes) == 6
    for i, one in enumerate(boxes):
        assert stage["y"] <= one["y"] and one["y"] + one["height"] <= stage["y"] + stage["height"]
        for other in boxes[:i]:
            apart_x = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart_x or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
