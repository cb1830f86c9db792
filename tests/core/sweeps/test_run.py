"""How jobs are given out, counted and written: runs go on after anything, failures are recorded, and what is said."""

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
from sequoia_core.sweeps import executors
from sequoia_core.sweeps.executors import LocalWorkers
from sequoia_core.sweeps.jobs import all_jobs
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results
from sequoia_core.sweeps.run import DIED_FAULT, MAX_DEATHS, missing_jobs, run_sweep
from sequoia_core.sweeps.worker import Done, run_job
from tests.sweep_plans import Here, run_here, untimed, write_plan

ROOT = Path(__file__).parents[3]


class KilledWorker(Exception):
    """As Dask's: several workers died with a job."""


@pytest.fixture
def idle(monkeypatch):
    """Have jobs done without any measuring: one second, or a hundred for a timed one."""
    monkeypatch.setattr("tests.sweep_plans.run_job", without_measuring)


def without_measuring(job):
    rows = [job.common | {"key": key, "result": "found"} for key in job.keys]
    return Done(rows, "somebody", 100.0 if job.timed else 1.0)


def deadly_lookup(job):
    """Run in a worker process: end it with one of the jobs."""
    if job.words.startswith("demo, lookup, code, T = 0,"):
        os._exit(1)
    return run_job(job)


@pytest.fixture
def small(tmp_path):
    """A plan of twelve jobs, and its results."""
    return read_plan(write_plan(tmp_path, count=2)), Results(tmp_path / "out")


def test_what_is_there_is_not_measured_again(small, tmp_path, idle):
    here, (plan, results) = Here(), small
    run_sweep(plan, results, here)
    first, plan = len(here.done), read_plan(write_plan(tmp_path, count=3))
    state = run_sweep(plan, results, here)
    # both is calibrated by the domain's first five prompts, so another set of those is another measurement
    new = [job for job in here.done[first:] if job.kind != "both"]
    assert first == 12 and state.skipped == 8 and len(new) == 4 and len(here.done) == 12 + 4 + 6
    assert run_sweep(plan, results, here).jobs == 0


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_leaves_no_process(serial, tmp_path):
    out, plan = tmp_path / "out", write_plan(tmp_path)
    command = [sys.executable, "-m", "sequoia_core", "sweep", str(plan), "--out", str(out), "--workers", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        while not list(out.glob("rows/*.parquet")):
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=10)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    before = len(list(out.glob("rows/*.parquet")))
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(found.stdout)
    assert 0 < before < 24 and report["skipped"] == before and report["done"] == report["jobs"] == 24 - before
    assert report["failed"] == report["failed_before"] == 0  # one JSON object on stdout; progress is on stderr
    assert untimed(out).equals(serial)


@pytest.mark.slow
def test_a_job_that_kills_its_worker_is_given_up_by_name_and_retried_on_request(tmp_path, monkeypatch):
    path = write_plan(tmp_path, ("prompts_per_job = 1", "prompts_per_job = 2"), count=2, tokens=4)
    plan, results = read_plan(path), Results(tmp_path / "out")
    with monkeypatch.context() as deadly:
        deadly.setattr(executors, "run_job", deadly_lookup)
        state = run_here(path, tmp_path / "out", 2)
    (bad,) = (job for job in all_jobs(plan) if job.kind == "lookup" and job.common["temperature"] == 0)
    assert (state.jobs, state.done, state.failed, state.rows) == (6, 5, 1, 10)
    assert state.faults == results.read_keys()[1] == dict.fromkeys(bad.keys, DIED_FAULT)
    assert (missing_jobs(plan, results).jobs, missing_jobs(plan, results).skipped) == ([], 12)
    todo = missing_jobs(plan, results, retry_failed=True)
    assert [job.keys for job in todo.jobs] == [bad.keys] and not todo.failed_before
    assert run_sweep(plan, results, Here(), todo=todo).done == 1
    assert (len(results.read_keys()[0]), results.read_keys()[1]) == (12, {})


@pytest.mark.parametrize("death", [BrokenExecutor, KilledWorker])
def test_a_job_with_which_workers_die_is_given_up_and_the_others_go_on(death, small, idle):
    plan, results = small
    bad = next(all_jobs(plan))
    here = Here(bad.keys, death)
    state = run_sweep(plan, results, here)
    assert (state.failed, state.done, here.deaths) == (1, 11, MAX_DEATHS)
    assert results.read_keys()[1] == dict.fromkeys(bad.keys, DIED_FAULT)


@pytest.mark.parametrize("death", [BrokenExecutor, KilledWorker])
def test_jobs_that_a_dead_worker_took_along_are_tried_again_one_by_one(death, small, monkeypatch):
    monkeypatch.setattr("sequoia_core.sweeps.run.ASK_SEC", 0.01)
    plan, results = small
    bad, together = list(all_jobs(plan))[1], []

    class Together(Here):
        """Ends all jobs under way at once; a deadly one takes the others along."""

        def submit(self, job):
            self.done.append((job, Future()))
            return self.done[-1][1]

        def lost(self):
            batch, self.done = self.done, []
            dies = any(self.deadly & set(job.keys) for job, _ in batch)
            together.extend([len(batch)] if dies else [])
            for job, future in batch:
                future.set_exception(death()) if dies else future.set_result(without_measuring(job))
            return False

    state = run_sweep(plan, results, Together(bad.keys))
    assert (state.failed, state.done) == (1, 11)
    assert together == [4, 1] and len(together) == MAX_DEATHS
    assert results.read_keys()[1] == dict.fromkeys(bad.keys, DIED_FAULT)


def test_jobs_of_a_lost_cluster_are_submitted_again(small, monkeypatch):
    monkeypatch.setattr("sequoia_core.sweeps.run.ASK_SEC", 0.01)

    class Lost(Here):
        """Loses the jobs under way once, and does all that come later."""

        again = False

        def submit(self, job):
            found = Future()
            self.done.append(job)
            if self.again:
                found.set_result(without_measuring(job))
            return found

        def lost(self):
            lost, self.again = bool(self.done) and not self.again, bool(self.done)
            return lost

    plan, results = small
    here = Lost()
    state = run_sweep(plan, results, here)
    assert (state.failed, state.done) == (0, 12) and len(here.done) == 12 + 4
    assert len(results.read_keys()[0]) == 12


def test_a_mistake_of_ours_ends_the_run(small):
    with pytest.raises(ZeroDivisionError):
        run_sweep(*small, Here(next(all_jobs(small[0])).keys, ZeroDivisionError))


def test_timed_jobs_come_last_and_one_at_a_time_and_what_is_left_is_estimated_by_kind(tmp_path):
    under_way, most, left = [], {False: 0, True: 0}, {}

    class Later(Here):
        def submit(self, job):
            assert not any(other.timed != job.timed for other in under_way)
            under_way.append(job)
            most[job.timed] = max(most[job.timed], len(under_way))
            future: Future[Done] = Future()
            threading.Timer(0.01, self.end, (job, future)).start()
            return future

        def end(self, job, future):
            under_way.remove(job)
            future.set_result(without_measuring(job))

    def progress(state):
        left.setdefault(state.done, state.remaining_sec)

    plan = read_plan(write_plan(tmp_path, count=2, more="profile = true\nrace = true"))
    state = run_sweep(plan, Results(tmp_path / "out"), Later(), progress=progress)
    assert state.done == state.jobs == 12 + 3 and most == {False: 4, True: 1}
    assert left[0] is None
    assert left[1] == 11 * 1.0 / 2 + 3 * 1.0  # two workers, one machine; a timed job is not known better yet
    assert left[13] == 2 * 100.0 and left[15] == 0.0


def test_threads_beyond_the_cores_are_refused(monkeypatch):
    monkeypatch.setattr(executors, "allowed_cores", lambda: 2)
    with pytest.raises(ValueError, match="threads: found 3, expected at most 2: the cores that it may use"):
        LocalWorkers(1, threads=3)


def begin(cores):
    """Prepare a worker, and let what watches its parent run."""
    executors._begin(cores)
    time.sleep(0.2)
    os._exit(0)


def test_a_worker_does_not_end_before_its_parent():
    context = multiprocessing.get_context("fork")
    cores = context.Queue()
    cores.put(os.sched_getaffinity(0))
    process = context.Process(target=begin, args=(cores,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


SCRIPT = """
from pathlib import Path
from tests.sweep_plans import run_here

print("script", __name__)  # no guard: an app's page has none
print(run_here(Path("plan.toml"), Path("out")).done)
"""


@pytest.mark.slow
def test_the_script_that_starts_workers_runs_once(tmp_path):
    write_plan(tmp_path, ('"model", "lookup", "both"', '"lookup"'), count=1, tokens=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("script __main__\n2\n", 0), done.stderr


def test_what_failed_before_is_said_again(tmp_path, capsys):
    path, results = write_plan(tmp_path, count=2), Results(tmp_path / "out")
    for job in all_jobs(read_plan(path)):
        results.add([job.failed(key, "it burnt") for key in job.keys])
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [report[key] for key in ("jobs", "done", "failed", "skipped", "failed_before")] == [0, 0, 0, 12, 12]
    assert "12 rows" in said.err and "it burnt" in said.err and "--retry-failed" in said.err
