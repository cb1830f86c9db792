"""One way of timing for the benchmarks: one call to warm up, then a few of which the median counts."""

import statistics
import time
from collections.abc import Callable

REPEATS = 3


def median_sec(run: Callable[[], object]) -> float:
    """Return the median seconds of a call."""
    run()
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
