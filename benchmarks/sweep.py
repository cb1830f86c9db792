"""Measure the overhead of a sweep in one process, in two processes and on two Dask workers.

All three must give equal rows. `overhead_share` = 1 − seconds of work inside jobs ÷ workers ÷ total seconds. Starting
local processes and their imports count as overhead; Dask workers are started beforehand. The last line is JSON.

    python benchmarks/sweep.py [--prompts 32] [--tokens 128] [--temperatures 0,0.3,0.6,1]
"""

import json
import tempfile
import time
from datetime import date
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ROOT, Options, require, write_record
from sequoia_core.models.device import device_name
from sequoia_extras.sweeps.executors import DaskWorkers, LocalWorkers
from sequoia_extras.sweeps.plan import SweepPlan, read_plan
from sequoia_extras.sweeps.results import Results
from sequoia_extras.sweeps.run import run_sweep

DASK = "two Dask workers"
PLAN = """
temperatures = [{temperatures}]
new_tokens = {tokens}
max_size = 16
prompts_per_job = 4

[[pairs]]
name = "demo"
drafters = ["model", "lookup", "both"]

[[prompts]]
domain = "code"
file = "{file}"
count = {prompts}
"""


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0,0.3,0.6,1")
    parser.set_defaults(ways=("serial", "two processes", DASK))
    args = parser.read(ways=("serial", DASK), prompts=2, tokens=4, temperatures="0")
    require("distributed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.toml")
        path.write_text(PLAN.format(file=ROOT / "assets" / "prompts" / "not-looping.jsonl", **vars(args)))
        plan = read_plan(path)
        found = {name: measured(plan, Path(folder, name), name) for name in args.ways}
        rows = {name: untimed(Path(folder, name)) for name in found}
    result = {
        "settings": {"prompts": args.prompts, "tokens": args.tokens, "temperatures": args.temperatures}
        | {"device": device_name(), "date": date.today().isoformat()},
        "ways": found,
        "overhead_share": max(way["overhead_share"] for way in found.values()),
        "equal_to_serial": all(each.equals(rows["serial"]) for each in rows.values()),
    }
    for name, way in found.items():
        print(
            f"{name:18} {way['jobs_per_sec']:.2f} jobs per second, {way['overhead_share']:.1%} of the time is overhead"
        )
    write_record("sweep", result, args)
    print(json.dumps(result))


def untimed(folder: Path) -> pa.Table:
    """Return the rows without the columns that differ even between equal sweeps."""
    return pq.read_table(folder / "rows").sort_by("key").drop_columns(["seconds", "worker"])


def measured(plan: SweepPlan, folder: Path, name: str) -> dict:
    """Run the whole plan into an empty folder and return the measurements."""
    if name == DASK:
        from distributed import LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            return through(plan, folder, lambda: DaskWorkers(cluster.scheduler_address))
    return through(plan, folder, lambda: LocalWorkers(1 if name == "serial" else 2))


def through(plan: SweepPlan, folder: Path, start) -> dict:
    started = time.perf_counter()
    workers = start()
    count = workers.count
    state = run_sweep(plan, Results(folder), workers)
    seconds = time.perf_counter() - started
    workers.close()
    if state.faults:
        raise SystemExit(f"failed: {state.faults}")
    return {
        "workers": count, "jobs": state.jobs, "seconds": seconds, "jobs_per_sec": state.jobs / seconds,
        "overhead_share": 1 - state.work_sec / count / seconds,
    }  # fmt: skip


if __name__ == "__main__":
    main()
