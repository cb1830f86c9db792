"""What a page may tell a run that is going on: to wait before each step, to take the next, to run on; no Streamlit."""

from __future__ import annotations

import threading
import time
import weakref

LOOK_AGAIN_SEC = 0.05  # how soon a waiting run sees that it was cancelled
LONGEST_WAIT_SEC = 120.0  # a run that nobody continues holds the engine, which others wait for
_HELD: weakref.WeakSet[Steering] = weakref.WeakSet()


class Steering:
    """Pause, step and continue requests for one run.

    Args:
        stepwise: wait for `next_step` after each step.
    Attributes:
        waiting_after: how many steps were taken, while the run waits for the next; else None.
    """

    def __init__(self, *, stepwise: bool = False) -> None:
        self.stepwise = stepwise
        self.waiting_after: int | None = None
        self._go = threading.Event()

    def next_step(self, after: int) -> None:
        """Let a run that waits after so many steps take one more; a press that comes late or twice does nothing."""
        if self.waiting_after == after:
            self._go.set()

    def run_on(self) -> None:
        """Let the run go on by itself."""
        self.stepwise = False
        self._go.set()

    def wait(self, after: int, cancel: threading.Event) -> None:
        """Wait for `next_step` after that many steps, where wanted, until cancelled or `LONGEST_WAIT_SEC`."""
        if not self.stepwise:
            return
        self._go.clear()
        self.waiting_after = after
        _HELD.add(self)
        until = time.monotonic() + LONGEST_WAIT_SEC
        while self.stepwise and not cancel.is_set() and not self._go.wait(LOOK_AGAIN_SEC):
            if time.monotonic() > until:
                self.stepwise = False
        _HELD.discard(self)
        self.waiting_after = None


def release_all() -> None:
    """Let every waiting run of this process go on to its end, such as when its models are to be freed."""
    for held in list(_HELD):
        held.run_on()
