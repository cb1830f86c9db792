"""The spread of measured figures: seconds between prompts, counts by chance. m = prompts, c = cells."""

from collections.abc import Sequence

import numpy as np

NORMAL_95 = 1.96  # standard deviations on either side that hold 95 %


def quartile_ratio(values: np.ndarray) -> float:
    """Return the upper ÷ the lower quartile of positive numbers, float64 [m]."""
    low, high = np.percentile(values, [25, 75])
    return float(high / low)


def decoding_speed(tokens: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the tokens per second of m prompts together, and the quartile ratio of their seconds per token."""
    count, time = np.array(tokens, dtype=float), np.array(seconds)
    return float(count.sum() / time.sum()), quartile_ratio(time / count)


def count_bounds(expected: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95% bounds of counts by chance, two of float64 [c], by the normal approximation."""
    half = NORMAL_95 * np.sqrt(expected * (1.0 - expected / samples))
    return np.maximum(expected - half, 0.0), expected + half
