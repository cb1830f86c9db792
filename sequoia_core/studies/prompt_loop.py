"""The loop over prompts that all studies share: progress, cancel, resuming an earlier run.

Knows nothing of what is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from typing import TypeVar

from ..files.faults import Cancelled

T = TypeVar("T")
Progress = Callable[[float, str], None]
Report = Callable[[float], None]


def one_by_one(
    count: int,
    measure: Callable[[int, Report], T | None],
    *,
    done: int = 0,
    noun: str = "prompt",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[T]:
    """Yield what `measure` finds for each prompt, in order, until the last one or a cancel.

    Args:
        count: prompts there are.
        measure: called with a prompt's place, from 0, and a function that takes the fraction of this prompt that is
            done; returns None when it was cancelled before the prompt was complete.
        done: how many of the first prompts an earlier run measured.
        noun: what is counted, for `progress`.
        progress: called with the fraction of all that is done and with words such as "prompt 2 of 8".
        cancel: looked at before each prompt.
    """
    for number in range(done, count):
        if cancel is not None and cancel.is_set():
            return

        def report(share: float, number: int = number) -> None:
            if progress is not None:
                progress((number + share) / count, f"{noun} {number + 1} of {count}")

        found = measure(number, report)
        if found is None:
            return
        yield found


def part_of(progress: Progress | None, low: float, high: float, doing: str = "") -> Progress | None:
    """Return what takes the progress of a part that goes from `low` to `high` of all, with words put before its own."""
    if progress is None:
        return None
    return lambda share, words: progress(low + share * (high - low), doing + words)


def require_a_prompt(complete: Sized, study: str) -> None:
    """Raise Cancelled when no prompt was complete, so that there is nothing to say."""
    if not complete:
        raise Cancelled(f"{study}: cancelled before the first prompt was complete, expected at least one")
