"""The live tree's script alone in a browser page, fed by hand with what a busy server may send."""

from __future__ import annotations

from pathlib import Path

from .conftest import ROOT

FOLDER = ROOT / "ui" / "token_tree"
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


def message(start: int, count: int, *, layout: bool, total: int = 50, running: bool = True) -> dict:
    step = {"tokens": ["a", "b"], "outcomes": "AN", "draft": [1, 0.5], "target": [1, 0.5], "path": [0], "bonus": "c"}
    steps = [
        step | {"index": start + i, "pieces": ["c"], "trials": [], "seconds": [0.1] * 4, "finished": None}
        for i in range(count)
    ]
    shape = {"parents": [-1, 0], "ranks": [0, 1], "across": [0, 0], "depths": [0, 1], "prompt": "p"}
    shape |= {"greedy": True, "after_rejection": ""}
    return {
        "epoch": "run",
        "layout": shape if layout else None,
        "from": start,
        "steps": steps,
        "total": total,
        "running": running,
        "waiting": "",
    }


def feed(page, messages: list[dict], wait_ms: int = 0) -> dict:
    """Return what the script asked for, and how many nodes it shows, so long after the last message."""
    page.set_content(f'<div id="place">{Path(FOLDER / "token_tree.html").read_text()}</div>')
    return page.evaluate(FEED, [Path(FOLDER / "token_tree.js").read_text(), messages, wait_ms])


def test_a_lost_layout_is_asked_for_until_it_comes(page) -> None:
    """A busy server drops messages that newer ones replace, answers to earlier requests among them."""
    lost = [message(9, 1, layout=False)] * 12
    assert feed(page, lost, wait_ms=1_200) == {"asked": [["resync", 0]] * 3, "nodes": 0}  # twice a second
    seen = feed(page, [*lost, message(0, 50, layout=True)], wait_ms=1_200)
    assert len(seen["asked"]) == 1 and seen["nodes"] == 3  # two nodes and the bonus token


def test_a_lost_step_is_asked_for_again_but_not_by_every_message_and_not_for_ever(page) -> None:
    """The server may no longer have it; while it is slow to answer, messages go on arriving."""
    lost = [message(0, 2, layout=True), *[message(9, 1, layout=False)] * 12]
    assert feed(page, lost)["asked"] == [["resync", 2]]
    assert feed(page, lost, wait_ms=700)["asked"] == [["resync", 2]] * 2
    assert feed(page, lost, wait_ms=8_000)["asked"] == [["resync", 2]] * 12


def test_a_run_that_is_over_is_fetched_to_its_end(page) -> None:
    """A message holds only so many steps of a large tree: the rest is asked for until all are there."""
    parts = [message(start, 20, layout=start == 0, running=False) for start in (0, 20, 40)]
    assert feed(page, parts[:1], wait_ms=700)["asked"] == [["resync", 20]] * 2
    seen = feed(page, [*parts[:2], message(40, 10, layout=False, running=False)], wait_ms=1_200)
    assert seen["asked"] == [["resync", 20], ["resync", 40]]
