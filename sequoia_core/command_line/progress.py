"""Show progress on stderr: a bar on a terminal, otherwise a line at least every ten seconds."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ..measuring.prompt_loop import Progress

LINE_SEC = 10.0


class ProgressLines:
    """Prints a progress line with an estimate of the remaining time whenever one is due."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] | None = None,
        doing: str = "starting",
    ):
        self._clock = clock
        self._say = say or print_to_stderr
        self._lock = threading.Lock()
        self._started = clock()
        self._last_line = self._started
        # Time and fraction at the first report; the fraction is above 0 in a resumed run.
        self._first: tuple[float, float] | None = None
        self._fraction = 0.0
        self._message = doing

    def __call__(self, fraction: float, message: str) -> None:
        if self._first is None or fraction < self._fraction:
            self._first = self._clock(), fraction
        self._fraction = fraction
        self._message = message
        self.tick()

    def due_in(self) -> float:
        return max(0.0, self._last_line + LINE_SEC - self._clock())

    def end(self) -> None:
        with self._lock:
            self._say = lambda line: None

    def tick(self) -> None:
        with self._lock:
            if self.due_in() == 0.0:
                self._last_line = self._clock()
                self._say(self._line())

    def _line(self) -> str:
        now = self._clock()
        elapsed = format_span(now - self._started)
        if self._first is None:
            return f"{self._message}, {elapsed}"
        line = f"{self._fraction:.0%}, {self._message}, {elapsed}"
        since, start = self._first
        if self._fraction > start:
            left = (now - since) * (1.0 - self._fraction) / (self._fraction - start)
            line += f", about {format_span(left)} left"
        return line


@contextmanager
def show_progress(as_json: bool, to: TextIO | None = None, doing: str = "starting") -> Iterator[Progress]:
    """Yield a progress callback; lines are printed even between calls.

    Args:
        as_json: whether to print lines even on a terminal, rather than a bar.
        to: stream to print to; None prints to stderr.
        doing: description of the work before the first call.
    """
    if not as_json and (to or sys.stderr).isatty():
        yield partial(_show_bar, to)
        return
    say = partial(print, file=to, flush=True) if to else None
    lines = ProgressLines(say=say, doing=doing)
    stopped = threading.Event()
    # If the thread dies because memory is exhausted, suppress the report, which would need memory too.
    sys.unraisablehook = bool
    # Thread.start would wait forever for a thread that fails to allocate memory.
    with suppress(RuntimeError):
        _thread.start_new_thread(_print_due_lines, (lines, stopped.wait))
    try:
        yield lines
    finally:
        stopped.set()
        lines.end()


def _print_due_lines(lines: ProgressLines, wait: Callable[[float], bool]) -> None:
    """Print lines as they become due, until `wait`, called with a number of seconds, returns True."""
    while not wait(lines.due_in()):
        lines.tick()


def _show_bar(to: TextIO | None, fraction: float, message: str) -> None:
    end = "\n" if fraction >= 1.0 else ""
    print(f"\r{fraction:5.0%} {message:<50}", end=end, file=to or sys.stderr, flush=True)


def print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def format_span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
