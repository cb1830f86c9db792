"""Run a sweep: submit missing jobs, write rows as they finish, restart lost workers."""

from __future__ import annotations

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
from .executors import ASK_SEC, Workers, is_worker_lost, killed_its_worker
from .jobs import Done, Job, all_jobs, parts_of
from .plan import Plan
from .results import Results

MAX_DEATHS = 2  # of workers with the same job and nothing else under way that are forgiven
MAX_LOSSES = 10
JOBS_AHEAD = 2  # jobs given out per worker, so that none waits for its next one
DIED_FAULT = "the worker process died with this job, several times (out of memory?)"


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


def missing_jobs(plan: Plan, results: Results, *, retry_failed: bool = False) -> tuple[list[Job], int]:
    """Return the jobs for rows that are neither there nor recorded as failed, and how many rows are."""
    there = results.keys() | (set() if retry_failed else set(results.failures()))
    jobs: list[Job] = []
    skipped = 0
    for job in all_jobs(plan):
        if job.timed:
            new = [] if job.keys[0] in there else [job]
            skipped += not new
            jobs += new
            continue
        wanted = [pair for pair in zip(job.keys, job.prompts, strict=True) if pair[0] not in there]
        skipped += len(job.keys) - len(wanted)
        jobs += parts_of(job, wanted, len(job.keys)) if wanted else ()
    return jobs, skipped


def failed_before(plan: Plan, results: Results) -> dict[str, str]:
    """Return row key -> why it could not be measured, of the rows of a plan that failed in an earlier run."""
    failed = results.failures()
    if not failed:
        return {}
    there = results.keys()
    return {key: failed[key] for job in all_jobs(plan) for key in job.keys if key in failed and key not in there}


def run_sweep(
    plan: Plan,
    results: Results,
    workers: Workers,
    *,
    todo: tuple[list[Job], int] | None = None,
    progress: Callable[[State], None] | None = None,
    cancel: threading.Event | None = None,
) -> State:
    """Measure the missing rows of a plan.

    Jobs that are timed come last, and only they then run: one per machine.

    Args:
        todo: as `missing_jobs` returned it; None asks it.
        progress: called when a job ends, and about once a second.
        cancel: ends the run; what was finished stays.

    Raises:
        Cancelled: once cancelled.
    """
    jobs, skipped = missing_jobs(plan, results) if todo is None else todo
    results.forget_failures({key for job in jobs for key in job.keys})
    state, started = State(len(jobs), skipped=skipped), time.monotonic()
    left = Counter(job.timed for job in jobs)
    took: dict[bool, list[float]] = {False: [], True: []}
    cancel = cancel or threading.Event()

    def tell() -> None:
        state.seconds = time.monotonic() - started
        if progress is not None:
            progress(state)

    tell()
    for timed, part in groupby(jobs, key=lambda job: job.timed):
        for job, done in _through(list(part), workers, one_per_machine=timed, cancel=cancel, tell=tell):
            if done.rows:
                results.add(done.rows)
            results.add_failure(job.key, done.faults, job.words)
            _count(state, job, done)
            left[timed] -= 1
            took[timed].append(done.seconds)
            state.remaining_sec = sum(
                left[part] * mean(took[part] or took[timed]) / max(1, workers.machines if part else workers.count)
                for part in (False, True)
                if left[part]
            )
            tell()
    return state


def _count(state: State, job: Job, done: Done) -> None:
    state.rows += len(done.rows)
    state.failed += bool(done.faults)
    state.done += not done.faults
    state.faults |= done.faults
    state.work_sec += done.seconds
    before = state.workers.get(done.worker, WorkerState(0, 0.0, ""))
    state.workers[done.worker] = WorkerState(before.jobs + 1, before.seconds + done.seconds, job.words)


def _through(
    jobs: list[Job], workers: Workers, *, one_per_machine: bool, cancel: threading.Event, tell: Callable[[], None]
) -> Iterator[tuple[Job, Done]]:
    """Yield each job with its result, as they end.

    A loss of workers does not say which job was the cause. Those that were under way are suspects: they are tried
    again one by one, and one whose worker dies again, alone, is given up: after `MAX_DEATHS`, or where Dask, which
    tries a job on several workers itself, gives it up once more.
    """
    waiting, suspects = deque(jobs), deque[Job]()
    under_way: dict[Future[Done], Job] = {}
    deaths: Counter[str] = Counter()  # by key of a job, of those that were ever suspects
    losses = 0  # since a job ended
    while waiting or suspects or under_way:
        if cancel.is_set():
            raise Cancelled("sweep: cancelled; what was finished is kept")
        on_trial = bool(suspects) or any(job.key in deaths for job in under_way.values())
        most = 1 if on_trial else workers.machines if one_per_machine else JOBS_AHEAD * workers.count
        lost = workers.lost()
        try:
            while len(under_way) < most and (source := suspects or waiting) and not lost:
                under_way[workers.submit(source[0])] = source[0]
                source.popleft()
        except Exception as error:
            if not is_worker_lost(error):
                raise
            lost = True
        if under_way and not lost:
            wait(under_way, timeout=ASK_SEC, return_when=FIRST_COMPLETED)
        elif not under_way and not lost:
            cancel.wait(ASK_SEC)  # nobody is there to give a job to: workers that may time, for one
        for future in [future for future in under_way if future.done()]:
            try:
                done = future.result()
            except BaseException as error:
                if not is_worker_lost(error):
                    raise
                if not killed_its_worker(error):
                    lost = True
                    continue
                job = under_way.pop(future)
                if job.key not in deaths or under_way:  # another one may be the cause
                    deaths[job.key] += 0
                    suspects.append(job)
                    continue
                losses = 0
                yield job, _died(job)
                continue
            losses = 0
            yield under_way.pop(future), done
        if lost:
            losses += 1
            if losses > MAX_LOSSES:
                raise ValueError(f"found workers lost {losses} times without a job that ended, expected some that stay")
            gone = workers.lost()  # all of them, with what gave out jobs: no job is the cause
            alone = len(under_way) == 1 and not gone
            for job in under_way.values():
                if gone:
                    waiting.appendleft(job)
                    continue
                deaths[job.key] += alone
                if deaths[job.key] <= MAX_DEATHS:
                    suspects.append(job)
                    continue
                losses = 0
                yield job, _died(job)
            under_way.clear()
            cancel.wait(min(losses - 1, 5) * ASK_SEC)
            workers.restart()
        tell()


def _died(job: Job) -> Done:
    return Done([], dict.fromkeys(job.keys, DIED_FAULT), "lost workers", 0.0)
