"""Run a sweep: submit missing jobs, write rows as they finish, go on when workers die."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import groupby
from statistics import mean
from typing import NamedTuple

from ..files.faults import Cancelled
from .executors import DaskWorkers, LocalWorkers, is_death
from .jobs import Job, all_jobs
from .plan import Plan
from .results import Results
from .worker import Done

MAX_DEATHS = 2  # of workers, with the same job
JOBS_AHEAD = 2  # jobs given out per worker, so that none waits for its next one
ASK_SEC = 1.0
DIED_FAULT = "the worker process died with this job, twice (out of memory?)"


class WorkerState(NamedTuple):
    """What is known of one worker: jobs it has done, seconds inside them, its last one in words."""

    jobs: int
    seconds: float
    last: str


@dataclass(slots=True)
class State:
    """How far a sweep is; given to `progress` after each change.

    Attributes:
        jobs: of this run, counted once; done and failed are parts of it. A job of which some prompts failed is failed.
        skipped: rows that were there already, or had failed before.
        work_sec: inside jobs, of all workers; seconds: in all.
        remaining_sec: an estimate from the jobs that are done, timed ones by themselves; None before the first.
        faults: row key -> why it could not be measured, of this run.
    """

    jobs: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    rows: int = 0
    workers: dict[str, WorkerState] = field(default_factory=dict)
    work_sec: float = 0.0
    seconds: float = 0.0
    remaining_sec: float | None = None
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        return (self.done + self.failed) / self.jobs if self.jobs else 1.0

    def count(self, job: Job, done: Done) -> None:
        """Add a job that ended."""
        faults = done.faults
        self.rows += len(done.rows) - len(faults)
        self.failed += bool(faults)
        self.done += not faults
        self.faults |= faults
        self.work_sec += done.seconds
        before = self.workers.get(done.worker, WorkerState(0, 0.0, ""))
        self.workers[done.worker] = WorkerState(before.jobs + 1, before.seconds + done.seconds, job.words)


class Todo(NamedTuple):
    """What a folder lacks of a plan.

    Attributes:
        skipped: how many rows are there already, or failed before.
        failed_before: row key -> why it could not be measured, of rows that are skipped.
    """

    jobs: list[Job]
    skipped: int
    failed_before: dict[str, str]


def missing_jobs(plan: Plan, results: Results, *, retry_failed: bool = False) -> Todo:
    """Return the jobs for rows that are neither there nor recorded as failed."""
    measured, failed = results.read_keys()
    there = measured if retry_failed else measured | set(failed)
    skipped = there & {key for job in all_jobs(plan) for key in job.keys}
    failed_before = {key: fault for key, fault in failed.items() if key in skipped}
    return Todo(list(all_jobs(plan, there)), len(skipped), failed_before)


def run_sweep(
    plan: Plan,
    results: Results,
    workers: LocalWorkers | DaskWorkers,
    *,
    todo: Todo | None = None,
    progress: Callable[[State], None] | None = None,
    cancel: threading.Event | None = None,
) -> State:
    """Measure the missing rows of a plan.

    Jobs that are timed come last, and only they then run: one per machine.

    Args:
        todo: as `missing_jobs` returned it; None asks it.
        progress: called when a job ends, and about once a second.
        cancel: ends the run by `Cancelled`; what was finished stays.
    """
    todo = todo or missing_jobs(plan, results)
    state, started = State(len(todo.jobs), skipped=todo.skipped), time.monotonic()
    left = Counter(job.timed for job in todo.jobs)
    took: dict[bool, list[float]] = {False: [], True: []}

    def tell() -> None:
        state.seconds = time.monotonic() - started
        if progress is not None:
            progress(state)

    tell()
    for timed, jobs in groupby(todo.jobs, key=lambda job: job.timed):
        for job, done in _finished(deque(jobs), workers, timed, cancel or threading.Event(), tell):
            results.add(done.rows)
            state.count(job, done)
            left[timed] -= 1
            took[timed].append(done.seconds)
            state.remaining_sec = sum(
                left[part] * mean(took[part] or took[timed]) / max(1, workers.machines if part else workers.count)
                for part in (False, True)
                if left[part]
            )
            tell()
    return state


def _finished(
    waiting: deque[Job],
    workers: LocalWorkers | DaskWorkers,
    timed: bool,
    cancel: threading.Event,
    tell: Callable[[], None],
) -> Iterator[tuple[Job, Done]]:
    """Yield each job with its result, as they end.

    The death of a worker does not say which job was the cause: those that it took along are tried again one by one,
    and one with which a worker dies again is given up.
    """
    under_way: dict[Future[Done], Job] = {}
    deaths: Counter[tuple[str, ...]] = Counter()  # by the keys of a job
    while waiting or under_way:
        if cancel.is_set():
            raise Cancelled("sweep: cancelled; what was finished is kept")
        if workers.lost():
            waiting.extendleft(under_way.values())
            under_way.clear()
        most = max(1, workers.machines) if timed else JOBS_AHEAD * workers.count
        on_trial = any(job.keys in deaths for job in under_way.values())
        while waiting and not on_trial and len(under_way) < (1 if waiting[0].keys in deaths else most):
            job = waiting.popleft()
            under_way[workers.submit(job)] = job
            on_trial = job.keys in deaths
        for future in wait(under_way, timeout=ASK_SEC, return_when=FIRST_COMPLETED).done:
            job = under_way.pop(future)
            if future.cancelled():
                waiting.appendleft(job)
                continue
            error = future.exception()
            if error is None:
                yield job, future.result()
                continue
            if not is_death(error):
                raise error
            deaths[job.keys] += 1
            if deaths[job.keys] < MAX_DEATHS:
                waiting.appendleft(job)
            else:
                yield job, Done([job.failed(key, DIED_FAULT) for key in job.keys], "lost workers", 0.0)
        tell()
