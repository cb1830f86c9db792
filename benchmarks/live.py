"""What a page that is watched costs the engine: tokens per second with the decode page in a browser and with no page.

The same request is decoded in turns, by the app's server with a page that follows it, and by a process of its own that
has the same engine and no page, until each has decoded for long enough. Seconds are those of steps, with the tree and
without it. What the browser itself computes is reported apart, but on a machine with few cores it is in the cost.
The models are the demo pair told of a longer context, so that a run lasts for several updates of the page.

python benchmarks/live.py --seconds 20            # a table, one JSON line last
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Page, sync_playwright

from sequoia_core.design.tree import TokenTree
from sequoia_core.models.pair_spec import PairSpec
from tests.served_app import QUIET, Server, cpu_sec, settle, use_pair
from ui.jobs.decode_job import record_run
from ui.runs.run_files import load_run
from ui.runs.runs import DecodeRequest

ROOT = Path(__file__).resolve().parent.parent

LONGEST_MS = 180_000
CONTEXT = 2_048


def speeds(run: dict[str, Any]) -> dict[str, float]:
    """Return tokens and seconds of a run, with the tree and without it."""
    return {
        "tokens": sum(len(step["pieces"]) for step in run["steps"]),
        "seconds": sum(sum(step["seconds"]) for step in run["steps"]),
        "plain_tokens": run["baseline"]["tokens"],
        "plain_seconds": run["baseline"]["seconds"],
    }


def serve_headless(connection, models: PairSpec) -> None:
    """Decode what is asked for, without a page, until nothing more is."""
    while (run := connection.recv()) is not None:
        connection.send(record_run(same_request(run, models)))


def watched_run(page: Page, folder: Path) -> dict[str, Any]:
    """Press Start, look on until the run has ended, and return it."""
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
    """Copy the demo pair with a context of `CONTEXT` positions: the text gets poor there, its speed stays as it is."""
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
    """Decode in turns until each side has `seconds` of steps -> sums by side, ratios by round, processor seconds."""
    sums = {side: dict.fromkeys(("tokens", "seconds", "plain_tokens", "plain_seconds"), 0.0) for side in SIDES}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        models = longer_pair(folder)
        near, far = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=serve_headless, args=(far, models), daemon=True)
        worker.start()
        server = Server(folder / "log")
        mine = psutil.Process()
        before = set(mine.children(recursive=True))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=QUIET.split()
        )
        browsers = [child for child in mine.children(recursive=True) if child not in before]
        try:
            page = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
            # a run that is over would play itself while the other side decodes
            page.goto(f"{server.address}/decode?tokens={tokens}")
            settle(page)
            use_pair(page, models.target, models.draft)
            first = watched_run(page, folder)  # warms both sides up
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of decoding, on each side")
    parser.add_argument("--tokens", type=int, default=1_024, help="of each run")
    options = parser.parse_args()
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
