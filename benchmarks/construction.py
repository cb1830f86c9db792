"""Time the exact dynamic program against a plain scalar loop of the paper's Algorithm 1, and show how it grows.

python benchmarks/construction.py            # a table, one JSON line last
"""

import json
import time
import tracemalloc

import numpy as np

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens_table, optimal_tree
from sequoia_core.native.processor import processor_name

REPEATS = 5


def vector(ranks: int, *, monotone: bool) -> AcceptanceVector:
    """Return a power-law-like vector, noisy (so that only the program is exact) or sorted."""
    probs = 0.375 * np.arange(1, ranks + 1) ** -1.6
    noisy = probs * np.random.default_rng(0).uniform(0.6, 1.4, ranks)
    return AcceptanceVector(np.sort(noisy)[::-1] if monotone else noisy)


def scalar_table(probs: list[float], max_size: int, max_depth: int) -> np.ndarray:
    """The recurrence as written, one number at a time: T[l][b][m], its inner maximum over j taken anew each time.

    Returns:
        float64 [max_size + 1, max_depth + 1], G[n, d].
    """
    never = float("-inf")
    below = [[never, 1.0] + [never] * (max_size - 1)]
    rows = [below[0]]
    for _ in range(max_depth):
        table = [[never, 1.0] + [never] * (max_size - 1)]
        for b, p in enumerate(probs, start=1):
            grown = [never] * (max_size + 1)
            for m in range(2, max_size + 1):
                for y in range(1, m):
                    value = table[b - 1][y] + p * max(row[m - y] for row in below)
                    if value > grown[m]:
                        grown[m] = value
            table.append(grown)
        below = table
        rows.append([max(column) for column in zip(*table, strict=True)])
    return np.array(rows).T


def seconds(work, repeats: int = REPEATS) -> float:
    """Return the median wall time of `work()` in seconds, after one warm-up."""
    work()
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        samples.append(time.perf_counter() - started)
    return float(np.median(samples))


def peak_mib(work) -> float:
    """Return the most memory that `work()` holds at once, in MiB."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak


def main() -> None:
    noisy, sorted_ = vector(32, monotone=False), vector(32, monotone=True)
    started = time.perf_counter()
    plain = scalar_table(noisy.probs.tolist(), 128, 9)  # 10 levels are 9 edges
    plain_sec = time.perf_counter() - started
    table = expected_tokens_table(noisy, max_size=128, max_depth=9)
    assert np.allclose(table, plain), "the two must agree"
    ours_sec = seconds(lambda: expected_tokens_table(noisy, max_size=128, max_depth=9))
    ratio = plain_sec / ours_sec
    print(f"n=128, 10 levels, 32 ranks: scalar {plain_sec:.2f} s, ours {ours_sec * 1e3:.2f} ms, {ratio:.0f}x")
    growth, peaks = {}, {}
    strong = AcceptanceVector(np.append(0.9, 0.1 * noisy.probs[:31]))  # so good a draft that every level still helps
    deep = expected_tokens_table(strong, max_size=1024, max_depth=24)
    assert not np.array_equal(deep[:, 24], deep[:, 23]), "the table must not settle before its last level"
    for size in (128, 256, 512, 1024, 2048):
        growth[size] = seconds(lambda size=size: expected_tokens_table(strong, max_size=size, max_depth=24), 3)
        peaks[size] = peak_mib(lambda size=size: expected_tokens_table(strong, max_size=size, max_depth=24))
        each = growth[size] / (size**2 * 24 * 32) * 1e9  # the loops of algorithm 4 take n² · d · B
        print(f"table n={size:>5}, d=24, 32 ranks: {growth[size]:.3f} s, {each:.2f} ns each, {peaks[size]:.1f} MiB")
    large = seconds(lambda: optimal_tree(sorted_, size=100_000), 3)
    print(f"monotone tree of 100,000 nodes: {large:.2f} s")
    print(
        json.dumps(
            {
                "scalar_sec": plain_sec,
                "ours_sec": ours_sec,
                "ratio": ratio,
                "table_sec": growth,
                "peak_mib": peaks[1024],
                "table_peak_mib": peaks,
                "processor": processor_name(),
                "monotone_100k_sec": large,
            }
        )
    )


if __name__ == "__main__":
    main()
