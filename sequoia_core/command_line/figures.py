"""How numbers and tables are written for people: with units, and as many digits as their interval supports."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from ..files.safe_files import visible
from .output import AsItIs

if TYPE_CHECKING:
    from rich.table import Table

MOST_DECIMALS = 4
UNFOLDED_CHARS = 16  # characters of a cell that are never folded


def figure(value: float) -> str:
    """Write a number whose interval is not known: three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def sure(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """Write a value with its interval, both with the two digits of the interval's width that mean something."""
    if low is None or high is None:
        return f"{figure(value)}{unit}"
    value_text, low_text, high_text = _alike(low, high, value, low, high)
    return f"{value_text}{unit} [{low_text}, {high_text}]"


def _alike(low: float, high: float, *values: float) -> list[str]:
    width = high - low
    least = 1 if abs(values[0]) < 10 else 0
    decimals = 2 if width <= 0 else min(MOST_DECIMALS, max(least, 1 - floor(log10(width))))
    return [f"{value:,.{decimals}f}" for value in values]


def percent(share: float) -> str:
    return f"{figure(100 * share)} %"


def duration(seconds: float) -> str:
    """Write the time of a pass or a step."""
    unit, factor = _unit(seconds)
    return f"{figure(factor * seconds)} {unit}"


def durations(low: float, high: float) -> str:
    """Write an interval of such times, both in the unit of the shorter one."""
    unit, factor = _unit(low)
    low, high = factor * low, factor * high
    return "[{}, {}] {}".format(*_alike(low, high, low, high), unit)


def _unit(seconds: float) -> tuple[str, float]:
    return ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def command(*words: object) -> AsItIs:
    """Write the command to go on with, one line to copy."""
    return AsItIs("Next: sequoia " + " ".join(shlex.quote(str(word)) for word in words))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Table:
    """Return a table: the first `words` columns to the left, numbers to the right; long cells fold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result, rows = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)), list(rows)
    for column, name in enumerate(columns):
        widest = max(len(name), *(len(row[column]) for row in rows))
        result.add_column(
            name, justify="left" if column < words else "right", overflow="fold", no_wrap=widest <= UNFOLDED_CHARS
        )
    for row in rows:
        result.add_row(*(Text(visible(cell)) for cell in row))
    return result
