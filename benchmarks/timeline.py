"""Time the frames of the run timeline in Chromium while a long run scrolls and zooms, beside an empty canvas.

    python benchmarks/timeline.py            # prints a table, then one JSON line; writes benchmarks/results/

The run is synthetic: its walks are drawn from a measured acceptance vector, and it is validated like a run file. Per
frame, one wheel event reaches the timeline. "Script" is the time of its handlers and animation frames, "processor" the
mean processor time of the page's main thread, which also paints the canvas, and "interval" the time between frames. All
views alternate with an empty canvas of the same size, which shows the limit of the machine under its current load.
"""

import json
import os
import shutil
from typing import Any

import numpy as np
import psutil

from benchmarks.common import ROOT, Options, require, unavailable, write_record
from sequoia_core import AcceptanceVector, optimal_tree
from tests.served_app import QUIET
from ui.runs.run_files import run_from_bytes, run_to_bytes
from ui.runs.runs import DecodeRequest
from ui.token_tree import run_about, to_wire, whole_shapes
from ui.token_tree.run_timeline import HTML, SCRIPT, STYLE

WORDS = (ROOT / "README.md").read_text(encoding="utf-8").split()
COLUMNS = {"rope": 2, "threads": 13, "middle": 30, "words": 120}  # px per token
FIGURES = ("script min", "median", "95 %", "processor", "interval", "95 % interval")
SIZE = {"width": 1280, "height": 900}
PREPARE = """
async ([script, run]) => {
  const native = window.requestAnimationFrame.bind(window)
  let spent = 0
  const timed = (act) => {
    const began = performance.now()
    act()
    spent += performance.now() - began
  }
  window.requestAnimationFrame = (act) => native((now) => timed(() => act(now)))
  const { default: timeline } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const place = document.getElementById("place")
  timed(() => timeline({ data: { runs: [run], running: false }, parentElement: place, setTriggerValue: () => {} }))
  const first = spent
  const field = place.querySelector(".field")
  const { left, top, width, height } = field.getBoundingClientRect()
  const tokens = run.steps.reduce((sum, step) => sum + step.pieces.length, 0)
  const at = { ctrlKey: true, clientX: left + width / 2, clientY: top + height / 2, cancelable: true, bubbles: true }
  const wheel = (deltaX, deltaY) => field.dispatchEvent(new WheelEvent("wheel", { deltaX, deltaY, ...at }))
  const empty = document.createElement("canvas")
  Object.assign(empty, { width, height })
  empty.style.cssText = `position: fixed; left: ${left}px; top: ${top}px; width: ${width}px; height: ${height}px`
  const acts = {
    scroll: (by) => wheel(by * 40, 0),
    zoom: (by) => wheel(0, by * 12),
    empty: () => empty.getContext("2d").clearRect(0, 0, width, height),
  }
  const frame = () => new Promise(native)
  window.record = async (column, name, frames) => {
    wheel(0, 1e5) // the whole text
    wheel(0, -Math.log((column * (tokens + 1)) / (width - 44)) / 0.0022)
    if (name === "empty") document.body.append(empty)
    place.style.visibility = name === "empty" ? "hidden" : ""
    const found = []
    let last = await frame()
    for (let at = 0; at < frames; at++) {
      spent = 0
      timed(() => acts[name](at % 30 < 15 ? 1 : -1))
      const now = await frame()
      found.push([spent, now - last])
      last = now
    }
    empty.remove()
    return found
  }
  return first
}
"""


def synthetic_run(tokens: int, nodes: int, seed: int = 0) -> dict[str, Any]:
    """Return a run of so many tokens with a static tree: the target's rank at each node is drawn from the vector."""
    vector = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.6.json")
    tree = optimal_tree(vector, size=nodes)
    rng = np.random.default_rng(seed)
    ranks = len(vector.probs)
    shares = np.append(vector.probs, max(0.0, 1 - vector.probs.sum()))
    steps: list[dict[str, Any]] = []
    written = 0
    while written < tokens:
        path, outcomes, trials = [0], ["A"] + ["N"] * (nodes - 1), []
        while True:
            chosen = rng.choice(ranks + 1, p=shares / shares.sum())
            children = np.flatnonzero(tree.parents == path[-1]).tolist()
            for rank, child in enumerate(children[: chosen + 1]):
                outcomes[child] = "A" if rank == chosen else "R"
                trials.append([child, rng.random(), rng.random(), rng.random()])
            if chosen >= len(children):
                break
            path.append(children[chosen])
        path = path[: tokens - written + 1]
        names = [f" {WORDS[at]}" for at in rng.integers(len(WORDS), size=nodes)]
        bonus = " bonus" if written + len(path) <= tokens else None
        pieces = [names[node] for node in path[1:]] + ([] if bonus is None else [bonus])
        written += len(pieces)
        steps.append(
            {
                "index": len(steps), "shape": 0, "tokens": names, "outcomes": "".join(outcomes),
                "draft": rng.dirichlet(np.ones(nodes)).tolist(), "target": rng.random(nodes).tolist(), "path": path,
                "bonus": bonus, "pieces": pieces, "trials": trials,
                "seconds": rng.uniform(0.001, 0.01, 4).tolist(), "finished": "length" if written == tokens else None,
            }
        )  # fmt: skip
    header = DecodeRequest("", tree, max_new_tokens=tokens).header()
    run = header | {"shapes": [tree.parents.tolist()], "baseline": {"tokens": tokens, "seconds": 0.02 * tokens}}
    return run_from_bytes(run_to_bytes(run | {"steps": steps}), "synthetic run")


def as_message(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run as the server sends it."""
    message = {"epoch": run["id"], "about": run_about(run), "shapes": whole_shapes(run["shapes"]), "from": 0}
    return to_wire(message | {"steps": run["steps"], "total": len(run["steps"]), "baseline": run["baseline"]})


def measure(run: dict[str, Any], rounds: int, frames: int) -> tuple[float, dict[str, list[list[float]]]]:
    """Return, in ms, the first drawing and per view each frame's script time, interval and mean processor time."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[list[float]]] = {}
    with sync_playwright() as playwright:
        mine = psutil.Process()
        before = set(mine.children(recursive=True))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=QUIET.split()
        )
        try:
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(0)
            page.set_content(f"<style>{THEME}{STYLE}</style><div id=place>{HTML}</div>")
            first_ms = page.evaluate(PREPARE, [SCRIPT, as_message(run)])
            children = [child for child in mine.children(recursive=True) if child not in before]
            pages = [child for child in children if "--type=renderer" in child.cmdline()]
            for _ in range(rounds):
                for view, column in COLUMNS.items():
                    for act in ("scroll", "zoom", "empty"):
                        began = main_thread_sec(pages)
                        times = page.evaluate("given => record(...given)", [column, act, frames])
                        cpu_ms = (main_thread_sec(pages) - began) * 1e3 / frames
                        name = "empty canvas" if act == "empty" else f"{view}, {act}"
                        found.setdefault(name, []).extend([*each, cpu_ms] for each in times)
        finally:
            browser.close()
    return first_ms, found


def main_thread_sec(processes: list[psutil.Process]) -> float:
    """Return the processor seconds of the processes' main threads, which also draw the canvas."""
    threads = [thread for process in processes for thread in process.threads() if thread.id == process.pid]
    return sum(thread.user_time + thread.system_time for thread in threads)


THEME = (
    ":root { --st-font: sans-serif; --st-code-font: monospace; --st-text-color: #222; --st-background-color: #fff;"
    " --st-gray-color: #888; --st-red-color: #c33; --st-green-color: #283; --st-violet-color: #72b }"
)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--tokens", type=int, default=2_000, help="number of tokens of the run")
    parser.add_argument("--nodes", type=int, default=64, help="number of nodes of each tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=60, help="number of frames per view and round")
    options = parser.read(tokens=100, nodes=8, rounds=1, frames=4)
    require("playwright")
    if shutil.which("chromium") is None:
        unavailable("This benchmark needs Chromium, which is not installed.")
    run = synthetic_run(options.tokens, options.nodes)
    first_ms, found = measure(run, options.rounds, options.frames)
    print(f"{len(run['steps'])} steps; the first drawing takes {first_ms:.0f} ms")
    print(f"{'ms per frame':16}" + "".join(f"{name:>13}" for name in FIGURES))
    record = {}
    for name, frames in found.items():
        script, interval, cpu = np.array(frames).T
        figures = [script.min(), *np.percentile(script, [50, 95]), cpu.mean(), *np.percentile(interval, [50, 95])]
        record[name] = dict(zip(FIGURES, (round(float(figure), 2) for figure in figures), strict=True))
        print(f"{name:16}" + "".join(f"{figure:13.1f}" for figure in figures))
    whole = {"tokens": options.tokens, "nodes": options.nodes, "load": os.getloadavg()[0], "cores": psutil.cpu_count()}
    whole |= {"first_ms": first_ms, "frames": record}
    write_record("timeline", whole, options)
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
