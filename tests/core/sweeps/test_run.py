"""How jobs are given out and counted, with workers that measure nothing; and what the command says of it."""

import json
import threading
from concurrent.futures import BrokenExecutor, Future

import pytest

from sequoia_core.command_line import sweep_command
from sequoia_core.command_line.main import main
from sequoia_core.sweeps.jobs import Done, all_jobs
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results
from sequoia_core.sweeps.run import DIED_FAULT, MAX_DEATHS, State, run_sweep
from tests.sweep_plans import Here, write_plan


class KilledWorker(Exception):
    """As Dask's: several workers died with a job."""


@pytest.fixture
def idle(monkeypatch):
    """Have jobs done without any measuring: one second, or a hundred for a timed one."""
    monkeypatch.setattr("tests.sweep_plans.run_job", lambda job: Done([], {}, "somebody", 100.0 if job.timed else 1.0))


@pytest.fixture
def timed_plan(tmp_path):
    return read_plan(write_plan(tmp_path, count=2, more="profile = true\nrace = true"))


@pytest.mark.parametrize(
    ("death", "deaths", "restarts"), [(KilledWorker, 2, 0), (BrokenExecutor, MAX_DEATHS + 1, MAX_DEATHS + 1)]
)
def test_a_job_whose_workers_die_is_given_up(death, deaths, restarts, tmp_path, idle):
    """Dask says it among others, then alone, and nobody else has to begin again."""
    plan, results = read_plan(write_plan(tmp_path, count=2)), Results(tmp_path / "out")
    bad = list(all_jobs(plan))[1]
    here = Here(bad.keys, death)
    state = run_sweep(plan, results, here)
    assert (state.failed, state.done) == (1, 11)
    assert (here.deaths, here.restarts) == (deaths, restarts)
    assert results.failures() == dict.fromkeys(bad.keys, DIED_FAULT)


def test_timed_jobs_come_last_and_one_at_a_time(tmp_path, timed_plan):
    under_way, most = [], {False: 0, True: 0}

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
            future.set_result(Done([], {}, "somebody", 0.0))

    state = run_sweep(timed_plan, Results(tmp_path / "out"), Later())
    assert state.done == state.jobs == 12 + 3 and most == {False: 4, True: 1}


def test_what_is_left_is_estimated_by_how_its_kind_is_done(tmp_path, idle, timed_plan):
    found = {}
    run_sweep(
        timed_plan, Results(tmp_path / "out"), Here(),
        progress=lambda state: found.setdefault(state.done, state.remaining_sec),
    )  # fmt: skip
    assert found[0] is None
    assert found[1] == 11 * 1.0 / 2 + 3 * 1.0  # two workers, one machine; a timed job is not known better yet
    assert found[13] == 2 * 100.0 and found[15] == 0.0


def test_what_failed_before_is_said_again(tmp_path, capsys):
    path, results = write_plan(tmp_path, count=2), Results(tmp_path / "out")
    for job in all_jobs(read_plan(path)):
        results.add_failure(job.key, dict.fromkeys(job.keys, "it burnt"), job.words)
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [report[key] for key in ("jobs", "done", "failed", "skipped", "failed_before")] == [0, 0, 0, 12, 12]
    assert "12 rows" in said.err and "it burnt" in said.err and "--retry-failed" in said.err
    dry = ["sweep", str(path), "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    assert main(dry) == 0 and json.loads(capsys.readouterr().out)["failed_before"] == 12
    assert main([*dry, "--retry-failed"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["failed_before"]) == (12, 0)


def test_lines_of_progress_come_now_and_then_and_at_the_end(capsys):
    tell = sweep_command._lines()
    for ended, seconds in ((0, 1), (0, 12), (1, 15), (2, 21), (2, 36), (3, 36), (4, 40), (5, 41), (5, 42)):
        tell(State(5, done=ended, seconds=seconds, remaining_sec=100.0 * (5 - ended)))
    assert capsys.readouterr().err.splitlines() == [
        "0 of 5 jobs, 12 s, about 8 min left",
        "2 of 5 jobs, 36 s, about 5 min left",
        "5 of 5 jobs, 41 s",
    ]
