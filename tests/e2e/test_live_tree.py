"""The live tree's script alone in a browser page, fed by hand with what a busy server may send."""

from __future__ import annotations

from itertools import pairwise

from ui.token_tree import HTML, SCRIPT

ABOUT = {"prompt": "p", "greedy": True, "after_rejection": "", "at": None, "link": None, "tour": False}
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
        "about": ABOUT if first else None,
        "shapes": [{"index": 0, "parents": [-1, 0], "across": [0, 0]}] if first else [],
        "from": start,
        "steps": steps,
        "total": total,
        "running": running,
        "waiting": "",
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
