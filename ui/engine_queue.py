"""One worker thread per process and the bounded queue in front of it.

The device is shared: measuring, profiling and decoding take turns on one thread, or every timing would be wrong. The
worker never calls Streamlit; pages poll the handle of their job. Only `engine_queue` at the end knows Streamlit.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import streamlit as st

from sequoia_core.files.faults import OUT_OF_MEMORY, Cancelled, is_out_of_memory
from ui.jobs import Job, JobContext
from ui.pair_loading import release_memory

MAX_WAITING = 4
WORKER_DIED = "the engine's worker thread died and was replaced. Start again."
_LOG = logging.getLogger(__name__)


class Busy(RuntimeError):
    """The queue is full; the message says how many wait."""


class EngineQueue:
    """Runs one job at a time on one daemon thread; at most `max_waiting` wait.

    Should the worker thread die, the next `submit`, or the next look at a job's `position`, marks the job it ran as
    failed and starts another thread.

    Args:
        max_waiting: how many jobs may wait behind the running one.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting = max_waiting
        self.running: Job | None = None
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> Job:
        """Queue work and return its handle.

        Raises:
            Busy: when `max_waiting` jobs already wait.
        """
        job = Job(label, work, info)
        job.place = self._place
        with self._changed:
            self._forget_cancelled()
            if len(self._waiting) >= self.max_waiting:
                raise Busy(f"The engine is busy: 1 job runs and {len(self._waiting)} wait. Try again in a moment.")
            self._waiting.append(job)
            self._keep_a_worker()
            self._changed.notify()
        return job

    def close(self) -> None:
        """Cancel everything and let the worker end."""
        with self._changed:
            self._closed = True
            for job in [*self._waiting, self.running]:
                if job is not None:
                    job.cancel()
            self._changed.notify()

    def _keep_a_worker(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self.running is not None:
            _end(self.running, WORKER_DIED)
            self.running = None
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def _place(self, job: Job) -> int:
        with self._changed:
            self._forget_cancelled()
            if self._waiting or self.running is not None:
                self._keep_a_worker()
            return self._waiting.index(job) + 1 if job in self._waiting else 0

    def _forget_cancelled(self) -> None:
        self._waiting = deque(job for job in self._waiting if job.state == "queued")

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._forget_cancelled()
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                    self._forget_cancelled()
                job = self._waiting.popleft()
                with job.lock:
                    if job.state != "queued":
                        continue
                    job.state, job.started = "running", time.monotonic()
                self.running = job
            _perform(job)
            self.running = None


def _perform(job: Job) -> None:
    """Run one job to its end, whatever that is: the worker must outlive every failure.

    Libraries raise more than exceptions: a panic of Rust code, such as the tokenizer's, is a BaseException.
    """
    error = None
    try:
        assert job.work is not None, "a waiting job has work"
        job.result = job.work(JobContext(job))
    except BaseException as caught:  # the boundary of the worker: recorded on the job and logged, never lost
        if not isinstance(caught, ValueError | Cancelled):
            _LOG.exception("job %s (%s) failed", job.id, job.label)
        if not isinstance(caught, Cancelled):
            error = _describe(caught, job.step_count)
    _end(job, error)
    if error is not None:
        release_memory()  # tracebacks and half-built models refer to each other


def _end(job: Job, error: str | None) -> None:
    """Record how a job ended, once."""
    with job.lock:
        if job.state != "running":
            return
        job.error, job.ended = error, time.monotonic()
        job.work = None  # lets go of models and prompts the closure held
        if error is not None:
            job.state = "failed"
        elif job.cancel_event.is_set():
            job.state = "cancelled"
        else:
            job.state, job.fraction = "done", 1.0


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
