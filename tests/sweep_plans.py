"""A small sweep of the demo pair, for tests: its plan, what does its jobs, and what times do not decide of its rows."""

from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sequoia_core.sweeps.executors import LocalWorkers
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results
from sequoia_core.sweeps.run import State, run_sweep
from sequoia_core.sweeps.worker import run_job

ASSETS = Path(__file__).parents[1] / "assets"
DEMO, PROMPTS = ASSETS / "demo", ASSETS / "prompts" / "not-looping.jsonl"
PLAN = """
temperatures = [0.0, 0.6]
new_tokens = {tokens}
max_size = 16
prompts_per_job = 1
{more}

[[pairs]]
name = "demo"
drafters = ["model", "lookup", "both"]

[[prompts]]
domain = "code"
file = "{prompts}"
count = {count}
"""


def write_plan(folder: Path, *changes: tuple[str, str], count: int = 4, tokens: int = 24, more: str = "") -> Path:
    """Write a plan, with some of its text replaced."""
    text = PLAN.format(prompts=PROMPTS, count=count, tokens=tokens, more=more)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def untimed(folder: Path) -> pa.Table:
    """Return the rows of a folder without what differs between equal sweeps."""
    return pq.read_table(folder / "rows").sort_by("key").drop_columns(["seconds", "worker"])


def run_here(plan: Path, folder: Path, count: int = 1) -> State:
    """Run a plan by processes of this machine."""
    workers = LocalWorkers(count)
    try:
        return run_sweep(read_plan(plan), Results(folder), workers)
    finally:
        workers.close()


class Here:
    """Does jobs in this process, at once; for a job of `deadly` its worker dies, by an error of the kind `death`."""

    count, machines = 2, 1

    def __init__(self, deadly=(), death=BrokenExecutor) -> None:
        self.deadly, self.death, self.deaths, self.done = set(deadly), death, 0, []

    def submit(self, job):
        found = Future()
        if self.deadly & set(job.keys):
            self.deaths += 1
            found.set_exception(self.death("died"))
        else:
            self.done.append(job)
            found.set_result(run_job(job))
        return found

    def lost(self):
        return False

    def close(self):
        pass
