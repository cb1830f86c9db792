"""One engine worker per process, a bounded queue in front of it, and the handles that sessions hold.

The device is shared: measuring, profiling and decoding take turns on one thread, or every timing would be wrong. The
worker never calls Streamlit; pages poll the handle. Only the accessors at the end of the file know Streamlit.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st

from sequoia_core.files.faults import OUT_OF_MEMORY, Cancelled, is_out_of_memory
from ui.loading import PairKeeper, release_memory

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

MAX_WAITING = 4
RING_STEPS = 1_024
ETA_FROM = 0.03  # with less progress than this an estimate is noise
WORKER_DIED = "the engine's worker thread died and was replaced. Start again."
_LOG = logging.getLogger(__name__)


class Busy(RuntimeError):
    """The queue is full; the message says how many wait."""


class JobContext:
    """What the work sees of its own job: a cancel flag to check, a place for progress and steps."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.cancel: threading.Event = job.cancel_event

    def pair(self, spec: PairSpec) -> ModelPair:
        """Return the models, loaded if they are not yet; see `shared_pair`."""
        self.progress(0.0, "Loading the model pair")
        return shared_pair(spec, self.cancel)

    def progress(self, fraction: float, message: str) -> None:
        """Report how much is done, 0 to 1, and what is being done."""
        job = self._job
        with job.lock:
            job.fraction = min(max(float(fraction), 0.0), 1.0)
            if job.pace_from is None and job.fraction > 0:
                job.pace_from = (time.monotonic(), job.fraction)
            job.message = message

    def keep(self, partial: Any) -> None:
        """Hold on to a partial result, which stays when the work is cancelled or fails."""
        self._job.result = partial

    def append(self, step: Any) -> None:
        """Keep one finished step; the oldest is dropped past `RING_STEPS`."""
        job = self._job
        with job.lock:
            job.ring.append(step)
            job.step_count += 1


class Job:
    """A handle on submitted work: read by pages, written by the worker under `lock`.

    Attributes:
        state: "queued", "running", "done", "failed" or "cancelled".
        result: what the work returned, or kept before it was cancelled or failed.
        error: one line naming the cause, with the step index where steps had begun.
        info: whatever the submitter wants to find again beside the result.
    """

    def __init__(self, label: str, work: Callable[[JobContext], Any], info: Any = None) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.label = label
        self.info = info
        self.state = "queued"
        self.fraction = 0.0
        self.message = ""
        self.result: Any = None
        self.error: str | None = None
        self.step_count = 0
        self.ring: deque[Any] = deque(maxlen=RING_STEPS)
        self.cancel_event = threading.Event()
        self.lock = threading.Lock()
        self.started: float | None = None
        self.ended: float | None = None
        self.pace_from: tuple[float, float] | None = None  # when progress began: loading a model says nothing of pace
        self.work: Callable[[JobContext], Any] | None = work
        self.place: Callable[[Job], int] = lambda job: 0

    @property
    def active(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in ("queued", "running")

    @property
    def position(self) -> int:
        """Place in the queue from 1; 0 when running or over."""
        return self.place(self)

    @property
    def seconds(self) -> float:
        """Time since the work began, seconds."""
        return 0.0 if self.started is None else (self.ended or time.monotonic()) - self.started

    @property
    def eta_sec(self) -> float | None:
        """Estimated seconds left; None while too little is done to say."""
        if self.state != "running" or self.pace_from is None:
            return None
        began, at = self.pace_from
        done = self.fraction - at
        return None if done < ETA_FROM else (time.monotonic() - began) * (1.0 - self.fraction) / done

    def cancel(self) -> None:
        """Ask the work to stop; a job that still waits is over at once."""
        self.cancel_event.set()
        with self.lock:
            if self.state == "queued":
                self.state, self.work = "cancelled", None

    def steps_since(self, index: int) -> list[Any]:
        """Return the kept steps from `index` on (fewer when the ring has dropped the oldest)."""
        with self.lock:
            first = self.step_count - len(self.ring)
            return [step for at, step in enumerate(self.ring, start=first) if at >= index]


class EngineQueue:
    """Runs one job at a time on one daemon thread; at most `max_waiting` wait.

    Should the thread die nevertheless, the next look at any job's place, or the next submit, ends its job as failed and
    starts another thread.

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


class PairSpec(NamedTuple):
    """Which models to load: folders or hub ids, None twice for the demo pair; dtype None leaves it to `load_pair`."""

    target: str | None = None
    draft: str | None = None
    dtype: str | None = None

    @property
    def is_demo(self) -> bool:
        return self.target is None or self.draft is None


HUB_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.safetensors", "model-*-of-*.safetensors")


def _fetch_pair(spec: PairSpec) -> None:
    """Download what is not here yet: the part of a load that may hang; and refuse folders whose reading would block.

    Raises:
        ValueError: naming the file that is no plain file, such as a named pipe.
    """
    for name in spec[:2]:
        if name is None:
            continue
        folder = Path(name).expanduser()
        if folder.is_dir():
            strange = next((file for file in sorted(folder.iterdir()) if not (file.is_file() or file.is_dir())), None)
            if strange is not None:
                raise ValueError(f"{strange}: found a pipe, device or broken link, expected a model's plain files")
        elif not folder.is_absolute() and not name.startswith((".", "~")):
            from huggingface_hub import snapshot_download

            try:
                snapshot_download(name, allow_patterns=list(HUB_FILES))
            except Exception as error:  # whatever is wrong, `load_pair` says it better, or finds all of it cached
                _LOG.info("nothing downloaded for %s: %s", name, error)


def _load_pair(spec: PairSpec) -> ModelPair:
    from sequoia_core import load_pair  # heavy: torch and transformers

    return load_pair(spec.target, spec.draft, dtype=spec.dtype)


# One pair in memory at a time. Not a Streamlit cache, because the worker has no script run to attach to.
_PAIRS: PairKeeper[PairSpec, ModelPair] = PairKeeper(_fetch_pair, _load_pair)


def shared_pair(spec: PairSpec, cancel: threading.Event) -> ModelPair:
    """Load a model pair once and keep it until another is asked for; call from the worker only.

    Args:
        cancel: ends the wait, not the load, which goes on by itself and is dropped.

    Raises:
        ValueError, OSError: from `load_pair`, with nothing half-loaded kept.
        Cancelled: before the pair was there.
    """
    return _PAIRS.get(spec, cancel)


def loaded_pair() -> PairSpec | None:
    """Return which pair is in memory; None when none is."""
    return _PAIRS.held


def unload_pair() -> None:
    """Let go of the loaded pair; a running job keeps its own hold until it ends."""
    _PAIRS.drop()


@st.cache_resource(show_spinner=False, on_release=EngineQueue.close)
def engine_queue() -> EngineQueue:
    """Return the process-wide queue."""
    return EngineQueue()


def _cancel_all(jobs: list[Job]) -> None:
    """Set cancel flags only: this runs on the server's event loop."""
    for job in jobs:
        job.cancel()


@st.cache_resource(show_spinner=False, scope="session", on_release=_cancel_all)
def _session_jobs() -> list[Job]:
    return []


def cancel_with_session(job: Job) -> Job:
    """Cancel this job when the browser tab that started it goes away; returns the job."""
    jobs = _session_jobs()
    jobs[:] = [old for old in jobs if old.active]
    jobs.append(job)
    return job
