"""A small sweep of the demo pair, for tests: its plan, and what of its rows times do not decide."""

from pathlib import Path

import pandas as pd

from sequoia_core.studies.sweep.plan import read_plan
from sequoia_core.studies.sweep.results import Results, untimed_rows
from sequoia_core.studies.sweep.run import run_sweep
from sequoia_core.studies.sweep.workers import LocalWorkers

PROMPTS = Path(__file__).parents[1] / "assets" / "prompts" / "not-looping.jsonl"
PLAN = """
temperatures = [0.0, 0.6]
new_tokens = {tokens}
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
