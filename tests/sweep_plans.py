"""A small sweep of the demo pair for tests: its plan, workers for its jobs, and the untimed part of its rows."""

from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sequoia_extras.sweeps.executors import LocalWorkers
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.results import Results
from sequoia_extras.sweeps.run import SweepState, run_sweep
from sequoia_extras.sweeps.worker import run_job

ASSETS = Path(__file__).parents[1] / "assets"
DEMO = ASSETS / "demo"
PROMPTS = ASSETS / "prompts" / "not-looping.jsonl"
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
    """Return the rows of a folder without the columns that differ between equal sweeps."""
    return pq.read_table(folder / "rows").sort_by("key").drop_columns(["seconds", "worker"])


def run_locally(plan: Path, folder: Path, count: int = 1) -> SweepState:
    """Run a plan with processes on this machine."""
    workers = LocalWorkers(count)
    try:
        return run_sweep(read_plan(plan), Results(folder), workers)
    finally:
        workers.close()


class InlineWorkers:
    """Runs jobs at once in this process; a job of `deadly` raises an error of the class `death`."""

    count = 2
    machines = 1
    lost = False

    def __init__(self, deadly=(), death=BrokenExecutor) -> None:
        self.deadly, self.death, self.done = set(deadly), death, []

    def submit(self, job):
        future = Future()
        if self.deadly & set(job.keys):
            future.set_exception(self.death("died"))
        else:
            self.done.append(job)
            future.set_result(run_job(job))
        return future
