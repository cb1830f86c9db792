"""A page's control of a live run: pause after each step, take the next step, or continue. No Streamlit."""

from __future__ import annotations

import threading
import time
import weakref

CANCEL_POLL_SEC = 0.05  # interval at which a waiting run checks whether it was cancelled
MAX_WAIT_SEC = 120.0  # maximum wait, because an abandoned run would block the engine for others
_WAITING: weakref.WeakSet[Steering] = weakref.WeakSet()


class Steering:
    """Pause, step and continue requests for one run.

    Args:
        stepwise: whether to wait for `next_step` after each step.
    Attributes:
        waiting_after: number of steps taken if the run is waiting for the next one; otherwise None.
    """

    def __init__(self, *, stepwise: bool = False) -> None:
        self.stepwise = stepwise
        self.waiting_after: int | None = None
        self._go = threading.Event()

    def next_step(self, after: int) -> None:
        """Let a run that is waiting after `after` steps take one more; a late or repeated request has no effect."""
        if self.waiting_after == after:
            self._go.set()

    def run_on(self) -> None:
        """Let the run continue without waiting."""
        self.stepwise = False
        self._go.set()

    def wait(self, after: int, cancel: threading.Event) -> None:
        """Wait after `after` steps, if stepwise, for `next_step` or cancellation, but at most `MAX_WAIT_SEC`."""
        if not self.stepwise:
            return
        self._go.clear()
        self.waiting_after = after
        _WAITING.add(self)
        until = time.monotonic() + MAX_WAIT_SEC
        while self.stepwise and not cancel.is_set() and not self._go.wait(CANCEL_POLL_SEC):
            if time.monotonic() > until:
                self.stepwise = False
        _WAITING.discard(self)
        self.waiting_after = None


def release_all() -> None:
    """Let every waiting run in this process continue to its end, for example to free its models."""
    for run in list(_WAITING):
        run.run_on()
