"""Jobs of the engine's worker thread: the handle that pages poll, and the context passed to the work. No Streamlit."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sequoia_core.models.pair_spec import PairSpec
from ui.session.model_pairs import shared_pair

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

ETA_FROM = 0.03  # minimum progress before the time left is estimated
MIN_RISE_SEC = 10.0
LOADING_SHARE = 0.3  # of the progress bar, if the models have to be loaded


class JobContext:
    """The parts of a job that its work can access: the cancel flag, progress, partial results and steps."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loaded_at = 0.0  # fraction of the bar at which loading ended
        self.cancel: threading.Event = job.cancel_event

    def pair(self, spec: PairSpec) -> ModelPair:
        """Return the model pair, loading it if necessary; see `shared_pair`."""
        job = self._job
        job.say("Loading the model pair", 0.0)

        def report(share: float, words: str) -> None:
            self._loaded_at = max(self._loaded_at, LOADING_SHARE * share)
            job.say(words, self._loaded_at)

        return shared_pair(spec, self.cancel, report)

    def progress(self, fraction: float, message: str) -> None:
        """Report the fraction done, from 0 to 1, and a message."""
        job = self._job
        done = min(max(float(fraction), 0.0), 1.0)
        now = time.monotonic()
        if job.first_progress is None and done > 0:
            job.first_progress = (now, done)
        began, at = job.first_progress or (now, 0.0)
        overall = self._loaded_at + (1 - self._loaded_at) * done
        if overall > job.fraction and done - at >= ETA_FROM:
            job.expected_end = now + (now - began) * (1.0 - done) / (done - at)
        job.say(message, overall)

    def subprogress(self, low: float, high: float, name: str = "") -> Callable[[float, str], None]:
        """Return a progress function for the part from fraction `low` to `high`; messages begin with `name`."""
        if name:
            self.progress(low, name)
        lead = f"{name}: " if name else ""
        return lambda fraction, message: self.progress(low + fraction * (high - low), lead + message)

    def store_partial(self, partial: Any) -> None:
        """Store a partial result, which remains if the work is cancelled or fails."""
        self._job.result = partial

    def append_step(self, step: Any) -> None:
        """Store a finished step."""
        self._job.steps.append(step)


class Job:
    """A handle for submitted work, read by pages and written by the worker.

    Attributes:
        future: the future whose result is the final state.
        ahead: futures of the jobs ahead in the queue.
        result: the work's return value, or the last partial result.
        error: one line that states the cause, and the step index if steps had begun; None unless the work failed.
        info: the submitter's data, stored with the result.
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
        self.steps: list[Any] = []
        self.cancel_event = threading.Event()
        self.created = time.monotonic()
        self.started: float | None = None
        self.ended: float | None = None
        self.first_progress: tuple[float, float] | None = None  # (time, fraction); excludes loading
        self.expected_end: float | None = None
        self._shown_left: float | None = None

    @property
    def state(self) -> str:
        """ "queued", "running", "done", "failed" or "cancelled"."""
        if self.future.running():  # checked first, because the state may change between the checks
            return "running"
        if not self.future.done():
            return "queued"
        if self.future.cancelled():
            return "cancelled"
        return "failed" if self.future.exception() else self.future.result()

    @property
    def active(self) -> bool:
        """Whether the job is waiting or running."""
        return not self.future.done()

    @property
    def position(self) -> int:
        """Position in the queue, starting at 1; 0 if running or finished."""
        if self.state != "queued":
            return 0
        return 1 + sum(not (other.running() or other.done()) for other in self.ahead)

    @property
    def seconds(self) -> float:
        """Seconds from the start of the work to its end, or to now if it is running."""
        return 0.0 if self.started is None else (self.ended or time.monotonic()) - self.started

    @property
    def eta_sec(self) -> float | None:
        """Estimated seconds left; None until there is enough progress, and once the estimate has proved too low.

        The estimate does not rise from one call to the next, unless the work takes twice as long as it was estimated.
        """
        if self.state != "running" or self.expected_end is None:
            return None
        left = self.expected_end - time.monotonic()
        if left <= 0:
            return None
        shown = self._shown_left
        self._shown_left = left if shown is None or left > 2 * shown + MIN_RISE_SEC else min(shown, left)
        return self._shown_left

    @property
    def step_count(self) -> int:
        """Number of finished steps."""
        return len(self.steps)

    def say(self, message: str, fraction: float) -> None:
        """Set the message that describes the current work, and the fraction done."""
        self.message = message
        self.fraction = fraction

    def cancel(self) -> None:
        """Request that the work stop; a waiting job ends immediately."""
        self.cancel_event.set()
        self.future.cancel()  # has no effect once the work has begun
