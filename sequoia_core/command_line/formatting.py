"""Format numbers and tables for display, with units and as many digits as the interval supports."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from ..files.safe_files import visible
from .output import Verbatim

if TYPE_CHECKING:
    from rich.table import Table

MAX_DECIMALS = 4
UNFOLDED_CHARS = 16  # widest column in which cells are never folded


def format_number(value: float) -> str:
    """Format a number without an interval to three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def format_interval(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """Format a value and its interval, rounding both to two significant digits of the interval's width."""
    if low is None or high is None:
        return f"{format_number(value)}{unit}"
    value_text, low_text, high_text = _format_to_width(low, high, value, low, high)
    return f"{value_text}{unit} [{low_text}, {high_text}]"


def _format_to_width(low: float, high: float, *values: float) -> list[str]:
    width = high - low
    decimals = 2
    if width > 0:
        least = 1 if abs(values[0]) < 10 else 0
        decimals = min(MAX_DECIMALS, max(least, 1 - floor(log10(width))))
    return [f"{value:,.{decimals}f}" for value in values]


def format_percent(share: float) -> str:
    return f"{format_number(100 * share)} %"


def format_duration(seconds: float) -> str:
    """Format the duration of a pass or a step."""
    unit, factor = _time_unit(seconds)
    return f"{format_number(factor * seconds)} {unit}"


def format_duration_range(low: float, high: float) -> str:
    """Format an interval of durations, in the unit that suits the shorter one."""
    unit, factor = _time_unit(low)
    low_text, high_text = _format_to_width(factor * low, factor * high, factor * low, factor * high)
    return f"[{low_text}, {high_text}] {unit}"


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 1e-3:
        return "µs", 1e6
    if seconds < 1:
        return "ms", 1e3
    return "s", 1.0


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def next_command(*arguments: object) -> Verbatim:
    """Return a line that suggests the next command."""
    return Verbatim("Next: sequoia " + " ".join(shlex.quote(str(argument)) for argument in arguments))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Table:
    """Return a table with the first `words` columns left-aligned and the others right-aligned; long cells fold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, name in enumerate(columns):
        widest = max(len(name), *(len(row[column]) for row in rows))
        result.add_column(
            name,
            justify="left" if column < words else "right",
            overflow="fold",
            no_wrap=widest <= UNFOLDED_CHARS,
        )
    for row in rows:
        result.add_row(*(Text(visible(cell)) for cell in row))
    return result
