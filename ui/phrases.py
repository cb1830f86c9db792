"""Formatting of intervals, counts, tree shapes, times and sizes. No Streamlit."""

import math
import time

ONE_PROMPT = "one prompt: no interval"
ONE_PASS_DIGITS = 2  # significant digits of a speed that was measured once: repetitions differ by several percent


def times(value: float, digits: int = 3) -> str:
    """Format a multiple with at most `digits` significant digits and two decimals: "2.54×", "12.3×", "104×"."""
    return f"{_rounded(value, digits)}×"


def times_between(low: float, high: float, digits: int = 3) -> str:
    """Format bounds of a multiple as "1.9 to 2.4×", or as one number if they are equal after rounding."""
    return " to ".join(dict.fromkeys((_rounded(low, digits), _rounded(high, digits)))) + "×"


def change(ratio: float) -> str:
    """Format a ratio as a change, such as "+12%", or from a doubling up as a multiple."""
    return f"{ratio - 1:+.0%}" if ratio < 2 else times(ratio)


def _rounded(value: float, digits: int) -> str:
    if not math.isfinite(value):  # times in an uploaded file may be arbitrarily small
        return "∞" if value > 0 else "–"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{min(2, max(0, digits - 1 - exponent))}f}"


def between(low: float, high: float, form: str = "{:.2f}", unit: str = "") -> str:
    """Format bounds as "1.94 to 2.96×", or as one number if they are equal."""
    return " to ".join(dict.fromkeys((form.format(low), form.format(high)))) + unit


def interval(
    low: float | None, high: float | None, form: str = "{:.2f}", unit: str = "", *, none: str = "no interval"
) -> str:
    """Format an interval as "95%: 1.94 to 2.96×", or as `none` if it is unknown."""
    return none if low is None or high is None else f"95%: {between(low, high, form, unit)}"


def in_parentheses(low: float | None, high: float | None, form: str = "{:.2f}", unit: str = "") -> str:
    """Format bounds for use after a value, such as " (1.94 to 2.96×)"; return an empty string without bounds."""
    return "" if low is None or high is None else f" ({between(low, high, form, unit)})"


def count(number: int, thing: str, things: str | None = None) -> str:
    """Format a count, such as "1 step" or "1,024 steps"; `things` is the plural if it is irregular."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def sampling(temperature: float, top_p: float) -> str:
    """Format a temperature and, if it is below 1, a top-p."""
    return f"T = {temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def clock_time(seconds: float) -> str:
    """Format a time in seconds since 1970 as "14:03:59" if it is today, otherwise as "28 Nov 14:03"."""
    moment = time.localtime(seconds)
    return time.strftime("%H:%M:%S" if moment[:3] == time.localtime()[:3] else "%d %b %H:%M", moment)


def size(number: int) -> str:
    """Format a number of bytes, such as "12 kB" or "3.4 MB"."""
    return f"{max(number, 1) / 1000:,.0f} kB" if number < 1_000_000 else f"{number / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """Format an estimated duration, such as "about 40 s" or "about 3 min"."""
    if seconds < 60:
        return f"about {max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    return f"about {seconds / 60:.0f} min"


def shape(size: int, depth: int) -> str:
    """Format a tree's size and depth."""
    return f"n = {size:,}, d = {depth}"
