"""One worker thread per process and the bounded queue in front of it: jobs side by side would spoil all times."""

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
    """The queue is full; the message says how many wait."""


class EngineQueue:
    """Runs one job at a time on one thread; at most `MAX_WAITING` wait."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._lock = threading.Lock()
        self._jobs: list[Job] = []  # in the order in which they run

    def submit(self, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> Job:
        """Queue work and return its handle; raise `Busy` when `MAX_WAITING` jobs already wait."""
        job = Job(label, info)
        with self._lock:
            self._jobs = [other for other in self._jobs if other.active]
            waiting = sum(other.state == "queued" for other in self._jobs)
            if waiting >= MAX_WAITING:
                raise Busy(f"The engine is busy: 1 job runs and {waiting} wait. Try again in a moment.")
            job.ahead = tuple(other.future for other in self._jobs)
            job.future = self._worker.submit(_perform, job, work)
            self._jobs.append(job)
        return job

    def close(self) -> None:
        """Cancel everything and let the worker end."""
        with self._lock:
            for job in self._jobs:
                job.cancel()
            self._worker.shutdown(wait=False)


def _perform(job: Job, work: Callable[[JobContext], Any]) -> str:
    """Run work to its end, and return how it ended, as `Job.state` says it.

    A panic of Rust code, such as the tokenizer's, is a BaseException. The future gets no error: tracebacks would keep
    models and tensors in memory.
    """
    job.started = time.monotonic()
    try:
        job.result = work(JobContext(job))
    except Cancelled:
        pass
    except BaseException as caught:  # the boundary of the worker: recorded on the job and logged, never lost
        job.error = _describe(caught, job.step_count)
        if not isinstance(caught, ValueError):
            _LOG.exception("job %s (%s) failed", job.id, job.label)
    finally:
        job.ended = time.monotonic()
    if job.error is not None:
        release_memory()  # tracebacks and half-built models refer to each other
        return "failed"
    if job.cancel_event.is_set():
        return "cancelled"
    job.fraction = 1.0
    return "done"


def _describe(error: BaseException, steps: int) -> str:
    """Return one line for the reader: the cause, and the step index once steps had begun."""
    if is_out_of_memory(error):
        text = OUT_OF_MEMORY
    else:
        safely = traceback.TracebackException(type(error), error, None)  # an exception's own str() may raise
        text = " ".join(str(safely).split()) or type(error).__name__
        if not isinstance(error, ValueError | OSError):
            text = f"{type(error).__name__}: {text}"
    return f"step {steps}: {text}" if steps and f"step {steps}" not in text else text


@st.cache_resource(show_spinner=False, on_release=EngineQueue.close)
def engine_queue() -> EngineQueue:
    """Return the process-wide queue."""
    return EngineQueue()
