"""Measure how much other busy processes slow down decoding, on as many threads as there are free cores.

    python benchmarks/busy.py                  # the demo pair and Gemma 3 270M; ten minutes
    python benchmarks/busy.py --quick          # the demo pair in one setting

Each round alternates between four conditions: alone; with one and with two `yes` processes; with a process that
multiplies matrices with OpenMP on all cores. This script starts and ends those processes. Each setting runs in a
separate process: `api` imports the package and sets nothing, `app` imports what the app and the command import before
PyTorch (waiting threads sleep after 20,000 spins), `spin 0` sets GOMP_SPINCOUNT=0, `pytorch` uses no compiled code.
`free` is the default: as many threads as free cores. `1`, `2` and so on are fixed numbers of threads. Tokens per second
exclude prefill. Trees are not measured on several fixed threads while others run, since a step can take minutes.
Prints a table of tokens per second, each also relative to decoding alone on all threads, then one JSON line.

Fair shares of two cores: if one other thread is busy, two of our threads get 1.33 cores and one gets 1; if two other
threads are busy, they get 1 and 0.67. With OpenMP on all cores, two threads therefore reach at most 0.5 of the speed
alone, and one thread at most 0.67.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from benchmarks.common import ROOT, Options

MATRICES = "import torch\na = torch.randn(700, 700)\nwhile True: a @ a"
CONDITIONS = {"alone": [], "1 yes": ["yes"], "2 yes": ["yes", "yes"], "openmp": [sys.executable]}
SETTINGS = {
    "api": {},
    "app": {"SEQUOIA_BUSY_APP": "1"},
    "spin 0": {"GOMP_SPINCOUNT": "0"},
    "pytorch": {"SEQUOIA_NATIVE": "0"},
}


@contextlib.contextmanager
def neighbours(programs: list[str]) -> Iterator[None]:
    """Keep other processes busy inside the block."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP"))}
    commands = [[name] if name == "yes" else [name, "-c", MATRICES] for name in programs]
    started = [subprocess.Popen(each, stdout=subprocess.DEVNULL, env=clean) for each in commands]
    try:
        # Importing torch takes a few seconds.
        time.sleep(4.0 if sys.executable in programs else 0.3)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class Work:
    """A pair with a planned tree, or a target alone, and the prompts."""

    def __init__(self, target: str | None, draft: str | None, seconds: float) -> None:
        from sequoia_core import SamplingConfig, load_pair
        from sequoia_core.decoding.tree_policy import ROOT_ONLY
        from sequoia_core.files.prompt_files import load_prompts

        self.pair, self.seconds, self.sampling = load_pair(target, draft), seconds, SamplingConfig(0.0)
        texts = load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl")
        self.prompts = [self.pair.tokenizer.encode(text)[:64] for text in texts]
        self.trees = {"plain": ROOT_ONLY}
        if self.pair.draft is not None:
            self.trees["tree"] = self._plan()

    def _plan(self):
        from sequoia_core import measure_acceptance, measure_profile, plan_tree

        vector = measure_acceptance(self.prompts[-4:], self.pair, sampling=self.sampling)
        profile = measure_profile(self.pair, sizes=(1, 2, 4, 8, 16), repeats=3)
        return plan_tree(vector, profile)

    def tokens_per_sec(self, tree) -> tuple[float, float]:
        """Return the tokens per second, and the median time of a target pass in milliseconds."""
        from sequoia_core import decode
        from sequoia_core.decoding.record import TOKENS_ONLY

        stop, tokens, spent, passes = time.perf_counter() + self.seconds, 0, 0.0, []
        for prompt in self.prompts:
            for step in decode(
                prompt, self.pair, tree=tree, sampling=self.sampling, max_new_tokens=64, details=TOKENS_ONLY
            ):
                tokens += len(step.new_tokens)
                spent += step.draft_sec + step.verify_sec + step.walk_sec + step.commit_sec
                passes.append(step.verify_sec)
                if time.perf_counter() > stop:
                    return tokens / spent, 1000 * statistics.median(passes)
        return tokens / spent, 1000 * statistics.median(passes)


def work(asked: dict) -> None:
    """Measure one setting in this process and print the result as one JSON line."""
    if os.environ.get("SEQUOIA_BUSY_APP"):
        import sequoia_core.models.short_spins  # noqa: F401  before torch
    import torch

    from sequoia_core.models import threads as engine

    cores = torch.get_num_threads()
    job = Work(asked["target"], asked["draft"], asked["seconds"])
    counts: dict[str, int | None] = {"free": None, **{str(count): count for count in sorted({1, cores})}}
    found: dict[str, list[tuple[float, float]]] = {}

    def rounds() -> None:
        for _ in range(asked["rounds"]):
            for condition in asked["conditions"]:
                with neighbours(CONDITIONS[condition]):
                    for name, count in counts.items():
                        for method, tree in job.trees.items():
                            if method == "tree" and count not in (None, 1) and condition != "alone":
                                continue
                            with fixed(engine, count):
                                value = job.tokens_per_sec(tree)
                            found.setdefault(f"{method} | {name} | {condition}", []).append(value)

    # Like the app, decode in a different thread than the one that loaded the models.
    if os.environ.get("SEQUOIA_BUSY_APP"):
        thread = threading.Thread(target=rounds)
        thread.start()
        thread.join()
    else:
        rounds()
    medians = {key: [statistics.median(each) for each in zip(*values, strict=True)] for key, values in found.items()}
    print(json.dumps({"threads": cores, "found": medians}))


@contextlib.contextmanager
def fixed(engine, count: int | None) -> Iterator[None]:
    """Use a fixed number of threads; None for the number of free cores."""
    import torch

    before, look = torch.get_num_threads(), engine.MEASURE_SEC
    if count is not None:
        engine.MEASURE_SEC, engine._free_cores._looked = float("inf"), time.perf_counter()
        engine._free_cores._free = count
        torch.set_num_threads(count)
    try:
        yield
    finally:
        engine.MEASURE_SEC = look
        torch.set_num_threads(before)


def models(quick: bool) -> dict[str, tuple[str | None, str | None, tuple[str, ...]]]:
    """Return the target, the draft and the settings of each pair to measure."""
    found: dict[str, tuple[str | None, str | None, tuple[str, ...]]] = {
        "demo pair": (None, None, ("api",) if quick else ("api", "app", "spin 0"))
    }
    if not quick:
        from sequoia_core.models import gemma

        folder, file = map(str, gemma.make())
        found["Gemma, folder drafted by file"] = folder, file, ("api", "app", "pytorch")
        found["Gemma, file"] = file, "none", ("api",)
    return found


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--only", default="", help="run only models whose names contain this")
    parser.add_argument("--settings", help="comma-separated: " + ", ".join(SETTINGS))
    parser.add_argument("--seconds", type=float, default=1.2, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file to write the record to")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.read(seconds=0.05)
    if args.worker:
        work(json.loads(args.worker))
        return
    from sequoia_core.models.processor import processor_name

    record: dict = {"processor": processor_name(), "date": date.today().isoformat(), "found": {}}
    conditions = ["alone", "1 yes"] if args.quick else list(CONDITIONS)
    for model, (target, draft, settings) in models(args.quick).items():
        if args.only not in model:
            continue
        for setting in args.settings.split(",") if args.settings else settings:
            asked = {
                "target": target, "draft": draft, "conditions": conditions,
                "seconds": args.seconds, "rounds": args.rounds,
            }  # fmt: skip
            command = [sys.executable, __file__, "--worker", json.dumps(asked)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **SETTINGS[setting]}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            record["found"][f"{model}, {setting}"] = result
            show(f"{model}, {setting}", result, conditions)
    line = json.dumps(record)
    if args.out:
        args.out.write_text(line + "\n")
    print(line)


def show(title: str, result: dict, conditions: list[str]) -> None:
    """Print a setting's table: tokens per second, time of a pass, and speed relative to decoding alone."""
    found, cores = result["found"], result["threads"]
    print(f"\n{title} ({cores} cores)\n{'':<14}" + "".join(f"{condition:>28}" for condition in conditions))
    for row in dict.fromkeys(key.rpartition(" | ")[0] for key in found):
        alone = found[f"{row.partition(' | ')[0]} | {cores} | alone"][0]
        cells = (found.get(f"{row} | {condition}", (math.nan, math.nan)) for condition in conditions)
        texts = (f"{speed:8.1f}/s {pass_ms:8.2f} ms {speed / alone:5.2f}" for speed, pass_ms in cells)
        print(f"{row:<14}" + "".join(f"{text:>28}" for text in texts), flush=True)


if __name__ == "__main__":
    main()
