"""The live tree's script alone in a browser page, fed by hand with what a busy server may send."""

from __future__ import annotations

from pathlib import Path

from .conftest import ROOT

FOLDER = ROOT / "ui" / "token_tree"
FEED = """
async ([script, messages]) => {
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const parentElement = document.getElementById("place")
  const asked = []
  for (const data of messages) {
    module.default({ data, parentElement, setTriggerValue: (name, value) => asked.push([name, value.have]) })
    await new Promise((done) => setTimeout(done, 5))
  }
  return { asked, nodes: parentElement.querySelectorAll(".nodes .node").length }
}
"""


def message(start: int, count: int, *, layout: bool, total: int = 50) -> dict:
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
        "running": True,
        "waiting": "",
    }


def feed(page, messages: list[dict]) -> dict:
    page.set_content(f'<div id="place">{Path(FOLDER / "token_tree.html").read_text()}</div>')
    return page.evaluate(FEED, [Path(FOLDER / "token_tree.js").read_text(), messages])


def test_a_lost_layout_is_asked_for_until_it_comes(page) -> None:
    """A busy server drops messages that newer ones replace, answers to earlier questions among them."""
    lost = [message(9, 1, layout=False)] * 12
    seen = feed(page, lost)
    assert seen == {"asked": [["resync", 0]] * 12, "nodes": 0}
    seen = feed(page, [*lost, message(0, 3, layout=True)])
    assert len(seen["asked"]) == 12 and seen["nodes"] == 3  # two nodes and the bonus token


def test_a_lost_step_is_asked_for_three_times(page) -> None:
    """The server keeps only so many steps: what it no longer has must not be asked for on every update."""
    seen = feed(page, [message(0, 2, layout=True), *[message(9, 1, layout=False)] * 12])
    assert seen["asked"] == [["resync", 2]] * 3
