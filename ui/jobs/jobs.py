"""Work for the engine's worker thread: the handle that pages poll, and what the work itself sees; no Streamlit."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sequoia_core.models.pair_spec import PairSpec
from ui.session.model_pairs import shared_pair

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

RING_STEPS = 1_024
ETA_FROM = 0.03  # with less progress than this an estimate is noise


class JobContext:
    """What the work sees of its own job: a cancel flag to check, a place for progress and steps."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.cancel: threading.Event = job.cancel_event

    def pair(self, spec: PairSpec) -> ModelPair:
        """Return the models, loaded if they are not yet; see `shared_pair`."""
        self.progress(0.0, "Loading the model pair")
        # a fraction of loading is none of the work's: it goes into the words
        return shared_pair(
            spec, self.cancel, lambda share, words: self.progress(0.0, f"Loading the model pair, {share:.0%}: {words}")
        )

    def progress(self, fraction: float, message: str) -> None:
        """Report how much is done, 0 to 1, and what is being done."""
        job = self._job
        job.fraction = min(max(float(fraction), 0.0), 1.0)
        if job.first_progress is None and job.fraction > 0:
            job.first_progress = (time.monotonic(), job.fraction)
        job.message = message

    def part(self, low: float, high: float, name: str = "") -> Callable[[float, str], None]:
        """Return a `progress` for one part of the work, from `low` to `high` of the whole; its name leads messages."""
        if name:
            self.progress(low, name)
        lead = f"{name}: " if name else ""
        return lambda fraction, message: self.progress(low + fraction * (high - low), lead + message)

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
    """A handle on submitted work: read by pages, written by the worker.

    Attributes:
        future: of the work; its result says how the work ended.
        ahead: the futures of the jobs that were to run before it.
        result: what the work returned, or kept before it was cancelled or failed.
        error: one line naming the cause, with the step index where steps had begun.
        info: whatever the submitter wants to find again beside the result.
    """

    def __init__(self, label: str, info: Any = None) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.label = label
        self.info = info
        self.future: Future[str] = Future()
        self.ahead: tuple[Future[str], ...] = ()
        self.fraction = 0.0
        self.message = ""
        self.result: Any = None
        self.error: str | None = None
        self.step_count = 0
        self.ring: deque[Any] = deque(maxlen=RING_STEPS)
        self.cancel_event = threading.Event()
        self.lock = threading.Lock()  # of the ring
        self.started: float | None = None
        self.ended: float | None = None
        # (time, fraction) of the first progress: loading does not count
        self.first_progress: tuple[float, float] | None = None

    @property
    def state(self) -> str:
        """One of "queued", "running", "done", "failed" and "cancelled"."""
        if self.future.running():  # in this order, for it may go on between two of these questions
            return "running"
        if not self.future.done():
            return "queued"
        if self.future.cancelled():
            return "cancelled"
        return "failed" if self.future.exception() else self.future.result()

    @property
    def active(self) -> bool:
        """Whether it still waits or runs."""
        return not self.future.done()

    @property
    def position(self) -> int:
        """Place in the queue from 1; 0 when running or over."""
        if self.state != "queued":
            return 0
        return 1 + sum(not (other.running() or other.done()) for other in self.ahead)

    @property
    def seconds(self) -> float:
        """Time since the work began, seconds."""
        return 0.0 if self.started is None else (self.ended or time.monotonic()) - self.started

    @property
    def eta_sec(self) -> float | None:
        """Estimated seconds left; None while too little is done to say."""
        if self.state != "running" or self.first_progress is None:
            return None
        began, at = self.first_progress
        done = self.fraction - at
        return None if done < ETA_FROM else (time.monotonic() - began) * (1.0 - self.fraction) / done

    def cancel(self) -> None:
        """Ask the work to stop; a job that still waits is over at once."""
        self.cancel_event.set()
        self.future.cancel()  # has no effect on work that has begun

    def steps_since(self, index: int) -> list[Any]:
        """Return the kept steps from `index` on (fewer when the ring has dropped the oldest)."""
        with self.lock:
            first = self.step_count - len(self.ring)
            return [step for at, step in enumerate(self.ring, start=first) if at >= index]
