"""How jobs are submitted, counted and written: runs continue after interruptions, and failures are recorded."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import psutil
import pytest

from sequoia_core.command_line.main import main
from sequoia_extras.sweeps import executors
from sequoia_extras.sweeps.executors import LocalWorkers
from sequoia_extras.sweeps.jobs import all_jobs
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.results import Results
from sequoia_extras.sweeps.run import DIED_FAULT, MAX_DEATHS, missing_jobs, run_sweep
from sequoia_extras.sweeps.worker import JobResult, run_job
from tests.sweep_plans import InlineWorkers, run_locally, untimed, write_plan

ROOT = Path(__file__).parents[3]


class KilledWorker(Exception):
    """Stands for Dask's exception of this name."""


@pytest.fixture
def idle(monkeypatch):
    """Replace measuring by results that claim one second, or a hundred for a timed job."""
    monkeypatch.setattr("tests.sweep_plans.run_job", without_measuring)


def without_measuring(job):
    rows = [job.common | {"key": key, "result": "found"} for key in job.keys]
    return JobResult(rows, "somebody", 100.0 if job.timed else 1.0)


def deadly_lookup(job):
    """End the worker process with one of the jobs."""
    if job.kind == "lookup" and job.common["temperature"] == 0:
        os._exit(1)
    return run_job(job)


@pytest.fixture
def small(tmp_path):
    """A plan of twelve jobs, and its results."""
    return read_plan(write_plan(tmp_path, count=2)), Results(tmp_path / "out")


def test_existing_rows_are_not_measured_again(small, tmp_path, idle):
    workers = InlineWorkers()
    plan, results = small
    run_sweep(plan, results, workers)
    first = len(workers.done)
    plan = read_plan(write_plan(tmp_path, count=3))
    state = run_sweep(plan, results, workers)
    # "both" is calibrated on the domain's first five prompts, so other prompts make another measurement.
    new = [job for job in workers.done[first:] if job.kind != "both"]
    assert first == 12 and state.skipped == 8 and len(new) == 4 and len(workers.done) == 12 + 4 + 6
    assert run_sweep(plan, results, workers).jobs == 0


@pytest.mark.slow
def test_a_killed_run_continues_and_leaves_no_process(serial, tmp_path):
    out = tmp_path / "out"
    plan = write_plan(tmp_path)
    command = [sys.executable, "-m", "sequoia_core", "sweep", str(plan), "--out", str(out), "--workers", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        while not list(out.glob("rows/*.parquet")):
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=10)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    before = len(list(out.glob("rows/*.parquet")))
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0 < before < 24 and report["skipped"] == before and report["done"] == report["jobs"] == 24 - before
    assert untimed(out).equals(serial)


@pytest.mark.slow
def test_a_job_that_kills_its_worker_is_recorded_and_retried_on_request(tmp_path, monkeypatch):
    path = write_plan(tmp_path, ("prompts_per_job = 1", "prompts_per_job = 2"), count=2, tokens=4)
    plan = read_plan(path)
    results = Results(tmp_path / "out")
    with monkeypatch.context() as deadly:
        deadly.setattr(executors, "run_job", deadly_lookup)
        state = run_locally(path, tmp_path / "out", 2)
    (bad,) = (job for job in all_jobs(plan) if job.kind == "lookup" and job.common["temperature"] == 0)
    assert (state.jobs, state.done, state.failed, state.rows) == (6, 5, 1, 10)
    assert state.faults == results.read_keys()[1] == dict.fromkeys(bad.keys, DIED_FAULT)
    assert (missing_jobs(plan, results).jobs, missing_jobs(plan, results).skipped) == ([], 12)
    todo = missing_jobs(plan, results, retry_failed=True)
    assert [job.keys for job in todo.jobs] == [bad.keys] and not todo.failed_before
    assert run_sweep(plan, results, InlineWorkers(), todo=todo).done == 1
    assert (len(results.read_keys()[0]), results.read_keys()[1]) == (12, {})


@pytest.mark.parametrize("death", [BrokenExecutor, KilledWorker])
def test_jobs_taken_down_by_a_dead_worker_are_retried_one_at_a_time(death, small):
    plan, results = small
    bad = list(all_jobs(plan))[1]
    batches = []

    class TogetherWorkers(InlineWorkers):
        """Finishes all jobs under way at once; a deadly job takes the others down."""

        def submit(self, job):
            future: Future[JobResult] = Future()
            self.done.append((job, future))
            if len(self.done) == 1:
                threading.Timer(0.05, self.finish).start()
            return future

        def finish(self):
            batch = self.done
            self.done = []
            dies = any(self.deadly & set(job.keys) for job, _ in batch)
            if dies:
                batches.append(len(batch))
            for job, future in batch:
                future.set_exception(death()) if dies else future.set_result(without_measuring(job))

    state = run_sweep(plan, results, TogetherWorkers(bad.keys))
    assert (state.failed, state.done) == (1, 11)
    assert batches == [4, 1] and len(batches) == MAX_DEATHS
    assert results.read_keys()[1] == dict.fromkeys(bad.keys, DIED_FAULT)


def test_a_programming_error_ends_the_run(small):
    with pytest.raises(ZeroDivisionError):
        run_sweep(*small, InlineWorkers(next(all_jobs(small[0])).keys, ZeroDivisionError))


def test_timed_jobs_come_last_and_one_at_a_time(tmp_path):
    under_way = []
    most = {False: 0, True: 0}

    class LateWorkers(InlineWorkers):
        def submit(self, job):
            assert not any(other.timed != job.timed for other in under_way)
            under_way.append(job)
            most[job.timed] = max(most[job.timed], len(under_way))
            future: Future[JobResult] = Future()
            threading.Timer(0.01, self.finish, (job, future)).start()
            return future

        def finish(self, job, future):
            under_way.remove(job)
            future.set_result(without_measuring(job))

    plan = read_plan(write_plan(tmp_path, count=2, more="profile = true\nrace = true"))
    state = run_sweep(plan, Results(tmp_path / "out"), LateWorkers())
    assert state.done == state.jobs == 12 + 3 and most == {False: 4, True: 1}
    assert state.work_sec == 12 * 1.0 + 3 * 100.0


def test_threads_beyond_the_cores_are_refused(monkeypatch):
    monkeypatch.setattr(executors, "allowed_cores", lambda: 2)
    with pytest.raises(ValueError, match="threads: found 3, expected at most 2"):
        LocalWorkers(1, threads=3)


def begin(cores):
    """Initialize a worker and give the thread that watches its parent time to run."""
    executors._initialize_worker(cores)
    time.sleep(0.2)
    os._exit(0)


def test_a_worker_does_not_exit_before_its_parent():
    context = multiprocessing.get_context("fork")
    cores = context.Queue()
    cores.put(os.sched_getaffinity(0))
    process = context.Process(target=begin, args=(cores,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


SCRIPT = """
from pathlib import Path
from tests.sweep_plans import run_locally

print("script", __name__)  # no guard, as in a page of the app
print(run_locally(Path("plan.toml"), Path("out")).done)
"""


@pytest.mark.slow
def test_the_script_that_starts_workers_runs_once(tmp_path):
    write_plan(tmp_path, ('"model", "lookup", "both"', '"lookup"'), count=1, tokens=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    options = {"capture_output": True, "text": True, "timeout": 300, "cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT)}}
    done = subprocess.run([sys.executable, "script.py"], **options)
    assert (done.stdout, done.returncode) == ("script __main__\n2\n", 0), done.stderr


def test_earlier_failures_are_reported_again(tmp_path, capsys):
    path, results = write_plan(tmp_path, count=2), Results(tmp_path / "out")
    for job in all_jobs(read_plan(path)):
        results.add([job.failed_row(key, "it burnt") for key in job.keys])
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), "--json"]) == 1
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [report[key] for key in ("jobs", "done", "failed", "skipped", "failed_before")] == [0, 0, 0, 12, 12]
    assert "12 rows" in printed.err and "it burnt" in printed.err and "--retry-failed" in printed.err
