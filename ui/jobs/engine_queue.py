"""One worker thread per process with a bounded queue, because concurrent jobs would distort each other's timings."""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import streamlit as st

from sequoia_core.files.faults import OUT_OF_MEMORY, Cancelled, is_out_of_memory
from ui.jobs.jobs import Job, JobContext
from ui.session.pair_loading import release_memory

MAX_WAITING = 4
_LOG = logging.getLogger(__name__)


class Busy(RuntimeError):
    """Raised when the queue is full; the message states how many jobs are waiting."""


class EngineQueue:
    """Runs one job at a time and lets at most `MAX_WAITING` jobs wait."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._lock = threading.Lock()
        self._jobs: list[Job] = []  # in order of execution

    def submit(self, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> Job:
        """Queue work and return its handle; raise `Busy` if `MAX_WAITING` jobs are already waiting."""
        job = Job(label, info)
        with self._lock:
            self._jobs = [other for other in self._jobs if other.active]
            waiting = sum(other.state == "queued" for other in self._jobs)
            if waiting >= MAX_WAITING:
                raise Busy(f"The engine is busy: 1 job is running and {waiting} are waiting. Try again in a moment.")
            job.ahead = tuple(other.future for other in self._jobs)
            job.future = self._worker.submit(_perform, job, work)
            self._jobs.append(job)
        return job

    def is_idle(self) -> bool:
        """Return whether no job is running or waiting."""
        return not any(job.active for job in self._jobs)

    def has_waiting(self) -> bool:
        """Return whether a job is waiting for the one that is running."""
        return any(job.state == "queued" for job in self._jobs)

    def close(self) -> None:
        """Cancel all jobs and let the worker thread end."""
        with self._lock:
            for job in self._jobs:
                job.cancel()
            self._worker.shutdown(wait=False)


def _perform(job: Job, work: Callable[[JobContext], Any]) -> str:
    """Run a job's work and return the final `Job.state`.

    Exceptions are stored as text rather than in the future, because tracebacks keep models and tensors in memory.
    """
    job.started = time.monotonic()
    try:
        job.result = work(JobContext(job))
    except Cancelled:
        pass
    except BaseException as caught:  # including panics in Rust code such as the tokenizer
        job.error = _describe(caught, job.step_count)
        if not isinstance(caught, ValueError):
            _LOG.exception("job %s (%s) failed", job.id, job.label)
    finally:
        job.ended = time.monotonic()
    if job.error is not None:
        release_memory()  # tracebacks and partly built models form reference cycles
        return "failed"
    if job.cancel_event.is_set():
        return "cancelled"
    job.fraction = 1.0
    return "done"


def _describe(error: BaseException, steps: int) -> str:
    """Describe an error in one line: its cause, and the step index if steps had begun."""
    if is_out_of_memory(error):
        text = OUT_OF_MEMORY
    else:
        formatted = traceback.TracebackException(type(error), error, None)  # str(error) itself may raise
        text = " ".join(str(formatted).split()) or type(error).__name__
        if not isinstance(error, ValueError | OSError):
            text = f"{type(error).__name__}: {text}"
    return f"step {steps}: {text}" if steps and f"step {steps}" not in text else text


@st.cache_resource(show_spinner=False, on_release=EngineQueue.close)
def engine_queue() -> EngineQueue:
    """Return the process-wide queue."""
    return EngineQueue()
