"""Lists of numbers as a profile has them: whole numbers, and seconds within bounds. Errors name field and finding."""

from __future__ import annotations

import numpy as np

from .tree import MAX_SIZE

MIN_SEC, MAX_SEC = 1e-12, 1e9  # beyond, ratios of two times overflow
MAX_CONTEXT = 10**9  # tokens


def _vector(name: str, values, kinds: str, low: float, high: float, what: str) -> np.ndarray:
    """Return numbers from `low` to `high` as a read-only array; `kinds` are the kinds of dtype taken."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError) as error:  # rows of different lengths
        raise ValueError(f"{name}: found {short(values)}, expected {what}") from error
    if array.size == 0:
        array = array.astype(kinds[0])
    if array.ndim != 1 or array.dtype.kind not in kinds or not np.all((low <= array) & (array <= high)):
        raise ValueError(f"{name}: found {short(values)}, expected {what}")
    array = array.astype(np.float64 if "f" in kinds else np.int64)
    array.setflags(write=False)
    return array


def whole_numbers(name: str, values) -> np.ndarray:
    return _vector(name, values, "iu", 1, MAX_SIZE, f"a list of positive whole numbers, at most {MAX_SIZE:,}")


def seconds_above_0(name: str, values) -> np.ndarray:
    return _vector(name, values, "fiu", MIN_SEC, MAX_SEC, "a list of positive finite numbers, of seconds")


def seconds_from_0(name: str, values) -> np.ndarray:
    return _vector(name, values, "fiu", 0.0, MAX_SEC, "a list of finite numbers of seconds, 0 or more")


def tokens_cached(context: float) -> float:
    if not 0 <= context <= MAX_CONTEXT:
        raise ValueError(f"context: found {short(context)}, expected 0 to {MAX_CONTEXT:,} tokens")
    return context


def short(values) -> str:
    text = str(values if len(str(values)) < 10_000 else type(values).__name__)
    return text if len(text) <= 60 else text[:57] + "..."
