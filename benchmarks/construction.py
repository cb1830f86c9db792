"""Time the exact dynamic program against a scalar loop of the paper's Algorithm 1, and measure how it scales.

python benchmarks/construction.py            # prints a table, then one JSON line
"""

import json
import time
import tracemalloc

import numpy as np

from benchmarks.common import Options, median_sec
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.models.processor import processor_name
from sequoia_core.trees.optimal import expected_tokens_table, optimal_tree

REPEATS = 5
DEEP = 1024  # number of nodes of the table whose peak memory is reported


def vector(ranks: int, *, monotone: bool) -> AcceptanceVector:
    """Return a vector similar to a power law: sorted, or noisy, so that only the dynamic program is exact."""
    probs = 0.375 * np.arange(1, ranks + 1) ** -1.6
    noisy = probs * np.random.default_rng(0).uniform(0.6, 1.4, ranks)
    return AcceptanceVector(np.sort(noisy)[::-1] if monotone else noisy)


def scalar_table(probs: list[float], max_size: int, max_depth: int) -> np.ndarray:
    """Compute the recurrence T[l][b][m] literally, one number at a time, with its inner maximum over j.

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


def peak_mib(work) -> float:
    """Return the peak memory of `work()` in MiB."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = Options(__doc__)
    parser.set_defaults(scalar_size=128, sizes=(128, 256, 512, DEEP, 2048), nodes=100_000)
    args = parser.read(scalar_size=16, sizes=(DEEP,), nodes=1_000)
    noisy, sorted_ = vector(32, monotone=False), vector(32, monotone=True)
    started = time.perf_counter()
    # 10 levels correspond to 9 edges.
    plain = scalar_table(noisy.probs.tolist(), args.scalar_size, 9)
    plain_sec = time.perf_counter() - started
    table = expected_tokens_table(noisy, max_size=args.scalar_size, max_depth=9)
    assert np.allclose(table, plain), "the two must agree"
    ours_sec = median_sec(lambda: expected_tokens_table(noisy, max_size=args.scalar_size, max_depth=9), REPEATS)
    ratio = plain_sec / ours_sec
    times = f"scalar {plain_sec:.2f} s, ours {ours_sec * 1e3:.2f} ms, {ratio:.0f}x"
    print(f"n={args.scalar_size}, 10 levels, 32 ranks: {times}")
    growth, peaks = {}, {}
    # With such a good draft, every level helps.
    strong = AcceptanceVector(np.append(0.9, 0.1 * noisy.probs[:31]))
    deep = expected_tokens_table(strong, max_size=DEEP, max_depth=24)
    assert not np.array_equal(deep[:, 24], deep[:, 23]), "the table must not converge before its last level"
    for size in args.sizes:
        growth[size] = median_sec(lambda size=size: expected_tokens_table(strong, max_size=size, max_depth=24))
        peaks[size] = peak_mib(lambda size=size: expected_tokens_table(strong, max_size=size, max_depth=24))
        # The loops of Algorithm 4 have n² · d · B iterations.
        each = growth[size] / (size**2 * 24 * 32) * 1e9
        print(f"table n={size:>5}, d=24, 32 ranks: {growth[size]:.3f} s, {each:.2f} ns each, {peaks[size]:.1f} MiB")
    large = median_sec(lambda: optimal_tree(sorted_, size=args.nodes))
    print(f"monotone tree of {args.nodes:,} nodes: {large:.2f} s")
    print(
        json.dumps(
            {
                "scalar_sec": plain_sec,
                "ours_sec": ours_sec,
                "ratio": ratio,
                "table_sec": growth,
                "peak_mib": peaks[DEEP],
                "table_peak_mib": peaks,
                "processor": processor_name(),
                "monotone_100k_sec": large,
            }
        )
    )


if __name__ == "__main__":
    main()
