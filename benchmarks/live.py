"""Measure the cost of a live page: tokens per second with and without the decode page in a browser.

    python benchmarks/live.py --seconds 20            # prints a table, then one JSON line

The same request is decoded alternately by the app's server with a page that follows it and by a separate process with
the same engine and no page, until each has decoded for long enough. Only the time of steps is counted, with and without
the tree. The browser's processor time is reported separately, but increases the cost on a machine with few cores. The
models are the demo pair with a longer context, so that a run spans several page updates.
"""

import json
import multiprocessing
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from benchmarks.common import ROOT, Options, require, unavailable
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.trees.tree import TokenTree
from tests.served_app import QUIET, Server, cpu_sec, settle, use_pair
from ui.jobs.decode_job import record_run
from ui.jobs.jobs import Job, JobContext
from ui.runs.run_files import load_run
from ui.runs.runs import DecodeRequest

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONGEST_MS = 180_000
CONTEXT = 2_048


def speeds(run: dict[str, Any]) -> dict[str, float]:
    """Return the tokens and seconds of a run, with and without the tree."""
    return {
        "tokens": sum(len(step["pieces"]) for step in run["steps"]),
        "seconds": sum(sum(step["seconds"]) for step in run["steps"]),
        "plain_tokens": run["baseline"]["tokens"],
        "plain_seconds": run["baseline"]["seconds"],
    }


def serve_headless(connection, models: PairSpec) -> None:
    """Decode requests without a page until the connection ends."""
    JobContext(Job("record")).pair(models)
    while (run := connection.recv()) is not None:
        connection.send(record_run(same_request(run, models)))


def watched_run(page: "Page", folder: Path) -> dict[str, Any]:
    """Press Start, wait for the run to end, and return it."""
    page.locator(".st-key-decode_start button:enabled").click()
    page.locator(".st-key-decode_stop button:enabled").wait_for(timeout=LONGEST_MS)
    page.locator(".st-key-decode_start button:enabled").wait_for(timeout=LONGEST_MS)
    settle(page)
    save = page.get_by_role("button", name="Save the run")
    save.wait_for()
    with page.expect_download() as saved:
        save.click()
    path = folder / "run.jsonl"
    saved.value.save_as(path)
    return load_run(path)


def longer_pair(folder: Path) -> PairSpec:
    """Copy the demo pair with a context of `CONTEXT` positions; this degrades the text, but not the speed."""
    for role in ("target", "draft"):
        shutil.copytree(ROOT / "assets" / "demo" / role, folder / role)
        config = folder / role / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    return PairSpec(str(folder / "target"), str(folder / "draft"))


def same_request(run: dict[str, Any], models: PairSpec) -> DecodeRequest:
    return DecodeRequest(
        run["prompt"],
        TokenTree(np.array(run["shapes"][0])),
        temperature=run["temperature"],
        top_p=run["top_p"],
        max_new_tokens=run["max_new_tokens"],
        verifier=run["verifier"],
        seed=run["seed"],
        models=models,
    )


def measure(seconds: float, tokens: int) -> dict[str, Any]:
    """Decode in turns until each side has `seconds` of steps; return sums by side, ratios by round, processor time."""
    from playwright.sync_api import sync_playwright

    sums = {side: dict.fromkeys(("tokens", "seconds", "plain_tokens", "plain_seconds"), 0.0) for side in SIDES}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        models = longer_pair(folder)
        near, far = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=serve_headless, args=(far, models), daemon=True)
        worker.start()
        server = Server(folder / "log", folder)
        mine = psutil.Process()
        before = set(mine.children(recursive=True))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=QUIET.split()
        )
        browsers = [child for child in mine.children(recursive=True) if child not in before]
        try:
            page = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
            # The page would replay a finished run while the other side decodes.
            page.goto(f"{server.address}/decode?tokens={tokens}")
            settle(page)
            use_pair(page, models.target, models.draft)
            # The first run warms up both sides.
            first = watched_run(page, folder)
            near.send(first)
            near.recv()
            spent = {"browser": 0.0, "server": 0.0}
            while min(sums[side]["seconds"] + sums[side]["plain_seconds"] for side in SIDES) < seconds:
                processes = {"browser": browsers, "server": [psutil.Process(server.process.pid)]}
                began = {part: cpu_sec(of) for part, of in processes.items()}
                found = {"page": watched_run(page, folder)}
                for part, of in processes.items():
                    spent[part] += cpu_sec(of) - began[part]
                near.send(first)
                found["headless"] = near.recv()
                rates = {}
                for side, run in found.items():
                    for key, value in speeds(run).items():
                        sums[side][key] += value
                    rates[side] = speeds(run)["tokens"] / speeds(run)["seconds"]
                ratios.append(rates["page"] / rates["headless"])
                print(f"round {len(ratios)}: page {rates['page']:.1f}, headless {rates['headless']:.1f} tokens/s")
        finally:
            browser.close()
            server.stop()
            near.send(None)
    return {"sums": sums, "ratios": ratios, "cpu_sec": spent, "nodes": len(first["shapes"][0])}


SIDES = ("page", "headless")


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of decoding per side")
    parser.add_argument("--tokens", type=int, default=1_024, help="number of tokens per run")
    # A shorter run may end before Stop takes effect.
    options = parser.read(seconds=0.1, tokens=128)
    require("playwright")
    if shutil.which("chromium") is None:
        unavailable("This benchmark needs Chromium, which is not installed.")
    found = measure(options.seconds, options.tokens)
    sums = found["sums"]
    rates = {side: sums[side]["tokens"] / sums[side]["seconds"] for side in SIDES}
    plain = {side: sums[side]["plain_tokens"] / sums[side]["plain_seconds"] for side in SIDES}
    print(f"with the tree: page {rates['page']:.1f}, headless {rates['headless']:.1f} tokens/s")
    print(f"without:       page {plain['page']:.1f}, headless {plain['headless']:.1f} tokens/s")
    cost = 1 - statistics.median(found["ratios"])
    print(f"the page costs {cost:.1%} (median of {len(found['ratios'])} rounds)")
    record = {
        "cost_share": cost,
        "cost_share_of_totals": 1 - rates["page"] / rates["headless"],
        "plain_cost_share_of_totals": 1 - plain["page"] / plain["headless"],
        "tokens_per_sec": rates,
        "plain_tokens_per_sec": plain,
        "seconds": {side: sums[side]["seconds"] + sums[side]["plain_seconds"] for side in SIDES},
        "rounds": found["ratios"],
        "browser_cpu_sec": found["cpu_sec"]["browser"],
        "server_cpu_sec": found["cpu_sec"]["server"],
        "nodes": found["nodes"],
        "cores": psutil.cpu_count(),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
