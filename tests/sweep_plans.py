"""A small sweep of the demo pair, for tests: its plan, what does its jobs, and what times do not decide of its rows."""

from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pandas as pd

from sequoia_core.sweeps.executors import LocalWorkers
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results, untimed_rows
from sequoia_core.sweeps.run import run_sweep
from sequoia_core.sweeps.worker import run_job

PROMPTS = Path(__file__).parents[1] / "assets" / "prompts" / "not-looping.jsonl"
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


def write_plan(folder: Path, *, count: int = 4, tokens: int = 24, more: str = "") -> Path:
    path = folder / "plan.toml"
    path.write_text(PLAN.format(prompts=PROMPTS, count=count, tokens=tokens, more=more))
    return path


def serial_rows(folder: Path) -> pd.DataFrame:
    """Return the rows of the plan from one local process."""
    workers = LocalWorkers(1)
    try:
        state = run_sweep(read_plan(write_plan(folder)), Results(folder / "out"), workers)
    finally:
        workers.close()
    assert state.done == state.jobs == 24 and not state.failed
    return untimed_rows(folder / "out")


class Here:
    """Does jobs in this process, at once; for a job of `deadly` its worker dies, by an error of the kind `death`."""

    count, machines = 2, 1

    def __init__(self, deadly=(), death=BrokenExecutor) -> None:
        self.deadly, self.death, self.deaths, self.done, self.restarts = set(deadly), death, 0, [], 0

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

    def restart(self):
        self.restarts += 1

    def close(self):
        pass
