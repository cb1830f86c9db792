"""Progress on stderr: a bar on a terminal, else a line at least every ten seconds."""

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
    from ..studies.prompt_loop import Progress

LINE_SEC = 10.0


class ProgressLines:
    """Says a line when one is due, with the time that is left at the pace so far."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] | None = None,
        doing: str = "starting",
    ):
        self._clock, self._say = clock, say or to_stderr
        self._lock = threading.Lock()
        self._began = self._said = clock()
        self._first: tuple[float, float] | None = None  # when, and the fraction: a resumed run begins above 0
        self._fraction, self._words = 0.0, doing

    def __call__(self, fraction: float, words: str) -> None:
        if self._first is None or fraction < self._fraction:
            self._first = self._clock(), fraction
        self._fraction, self._words = fraction, words
        self.tick()

    def due_in(self) -> float:
        return max(0.0, self._said + LINE_SEC - self._clock())

    def end(self) -> None:
        with self._lock:
            self._say = lambda line: None

    def tick(self) -> None:
        with self._lock:
            if self.due_in() == 0.0:
                self._said = self._clock()
                self._say(self._line())

    def _line(self) -> str:
        now, parts = self._clock(), [self._words]
        if self._first is not None:
            since, start = self._first
            parts.insert(0, f"{self._fraction:.0%}")
        parts.append(span(now - self._began))
        if self._first is not None and self._fraction > start:
            left = (now - since) * (1.0 - self._fraction) / (self._fraction - start)
            parts.append(f"about {span(left)} left")
        return ", ".join(parts)


@contextmanager
def shown_progress(as_json: bool, to: TextIO | None = None, doing: str = "starting") -> Iterator[Progress]:
    """Give what takes the fraction that is done and words; lines come even while nothing calls it.

    Args:
        doing: the words of lines until the first call.
    """
    if not as_json and (to or sys.stderr).isatty():
        yield partial(_bar, to)
        return
    say = partial(print, file=to, flush=True) if to else None
    lines, over = ProgressLines(say=say, doing=doing), threading.Event()
    sys.unraisablehook = bool  # says nothing, and needs no memory to: a thread may die for want of it, also later
    with suppress(RuntimeError):  # no room; `Thread.start` would wait for ever for a thread that finds no memory
        _thread.start_new_thread(_keep_saying, (lines, over.wait))
    try:
        yield lines
    finally:
        over.set()
        lines.end()


def _keep_saying(lines: ProgressLines, wait: Callable[[float], bool]) -> None:
    """Say lines as they are due until `wait`, given seconds, returns True."""
    while not wait(lines.due_in()):
        lines.tick()


def _bar(to: TextIO | None, fraction: float, words: str) -> None:
    end = "\n" if fraction >= 1.0 else ""
    print(f"\r{fraction:5.0%} {words:<50}", end=end, file=to or sys.stderr, flush=True)


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
