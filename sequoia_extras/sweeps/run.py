"""Run a sweep: submit the missing jobs, write their rows as they finish, and tolerate worker deaths."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from sequoia_core.files.faults import Cancelled

from .executors import DaskWorkers, LocalWorkers, is_worker_death
from .jobs import SweepJob, all_jobs
from .plan import SweepPlan
from .results import Results
from .worker import JobResult

MAX_DEATHS = 2  # maximum number of worker deaths during the same job
JOBS_AHEAD = 2  # number of jobs submitted per worker, so that no worker waits for its next job
POLL_SEC = 1.0  # interval between checks for cancellation
DIED_FAULT = "the worker process died twice during this job (out of memory?)"


@dataclass(slots=True)
class SweepState:
    """The progress of a sweep, passed to `progress` after each job.

    Attributes:
        jobs: number of jobs in this run. At the end, `done` and `failed` add up to it; one failed prompt fails a job.
        skipped: number of rows that already existed or had failed before.
        workers: worker -> description of its last job.
        work_sec: time spent in jobs, summed over workers; `seconds` is the elapsed time.
        faults: row key -> reason why it could not be measured in this run.
    """

    jobs: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    rows: int = 0
    workers: dict[str, str] = field(default_factory=dict)
    work_sec: float = 0.0
    seconds: float = 0.0
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        return (self.done + self.failed) / self.jobs if self.jobs else 1.0

    def count(self, job: SweepJob, result: JobResult) -> None:
        """Count a finished job."""
        faults = result.faults
        self.rows += len(result.rows) - len(faults)
        self.failed += bool(faults)
        self.done += not faults
        self.faults |= faults
        self.work_sec += result.seconds
        self.workers[result.worker] = job.description


class Todo(NamedTuple):
    """The part of a plan that a folder of results lacks.

    Attributes:
        skipped: number of rows that already exist or failed before.
        failed_before: row key -> reason why it could not be measured, for skipped rows.
    """

    jobs: list[SweepJob]
    skipped: int
    failed_before: dict[str, str]


def missing_jobs(plan: SweepPlan, results: Results, *, retry_failed: bool = False) -> Todo:
    """Return the jobs whose rows do not exist and, unless `retry_failed`, have not failed before."""
    measured, failed = results.read_keys()
    existing = measured if retry_failed else measured | set(failed)
    skipped = existing & {key for job in all_jobs(plan) for key in job.keys}
    failed_before = {key: fault for key, fault in failed.items() if key in skipped}
    return Todo(list(all_jobs(plan, existing)), len(skipped), failed_before)


def run_sweep(
    plan: SweepPlan,
    results: Results,
    workers: LocalWorkers | DaskWorkers,
    *,
    todo: Todo | None = None,
    progress: Callable[[SweepState], None] | None = None,
    cancel: threading.Event | None = None,
) -> SweepState:
    """Measure the missing rows of a plan; timed jobs run last, one at a time per machine.

    Args:
        todo: result of `missing_jobs`; None to compute it.
        progress: function called at the start and after each job; None for no reports.
        cancel: event that ends the run with `Cancelled`, keeping the rows written so far; None for no cancellation.
    """
    todo = todo or missing_jobs(plan, results)
    state = SweepState(len(todo.jobs), skipped=todo.skipped)
    started = time.monotonic()
    report = progress or (lambda state: None)
    report(state)
    for timed, jobs in groupby(todo.jobs, key=lambda job: job.timed):
        for job, result in _run_jobs(deque(jobs), workers, timed, cancel or threading.Event()):
            results.add(result.rows)
            state.count(job, result)
            state.seconds = time.monotonic() - started
            report(state)
    return state


def _run_jobs(
    waiting: deque[SweepJob], workers: LocalWorkers | DaskWorkers, timed: bool, cancel: threading.Event
) -> Iterator[tuple[SweepJob, JobResult]]:
    """Yield each job with its result as it finishes.

    It is unknown which job killed a worker, so the jobs that were lost with it are retried one at a time. A job fails
    if a worker dies again while running it.
    """
    under_way: dict[Future[JobResult], SweepJob] = {}
    deaths: Counter[tuple[str, ...]] = Counter()  # keys of a job -> number of worker deaths
    while waiting or under_way:
        if cancel.is_set():
            raise Cancelled("sweep cancelled; finished rows are kept")
        if workers.lost:
            raise ValueError("lost the connection to the scheduler; run the sweep again to continue")
        limit = max(1, workers.machines) if timed else JOBS_AHEAD * workers.count
        on_trial = any(job.keys in deaths for job in under_way.values())
        while waiting and not on_trial and len(under_way) < (1 if waiting[0].keys in deaths else limit):
            job = waiting.popleft()
            under_way[workers.submit(job)] = job
            on_trial = job.keys in deaths
        for future in wait(under_way, timeout=POLL_SEC, return_when=FIRST_COMPLETED).done:
            job = under_way.pop(future)
            if future.cancelled():  # Dask cancels futures if it loses the scheduler
                waiting.appendleft(job)
                continue
            error = future.exception()
            if error is None:
                yield job, future.result()
                continue
            if not is_worker_death(error):
                raise error
            deaths[job.keys] += 1
            if deaths[job.keys] < MAX_DEATHS:
                waiting.appendleft(job)
            else:
                yield job, JobResult([job.failed_row(key, DIED_FAULT) for key in job.keys], "lost workers", 0.0)
