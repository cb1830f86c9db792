"""Time the server's work when a slider on the tree page moves: the page's whole script, without a browser.

python benchmarks/pages.py            # prints a table, then one JSON line
"""

import json
import logging
import statistics
import time

# Streamlit warns if it runs without a browser.
logging.disable(logging.WARNING)

from streamlit.testing.v1 import AppTest  # noqa: E402

from benchmarks.common import ROOT, Options  # noqa: E402

DEPTH = 8
SIZES = {
    "n <= 128": range(20, 128, 12), "n <= 512": range(130, 512, 42), "n <= 1024": range(540, 1024, 54),
    "n <= 2048": range(1100, 2048, 110),
}  # fmt: skip


def main() -> None:
    parser = Options(__doc__)
    parser.set_defaults(sizes=SIZES)
    args = parser.read(sizes={name: sizes[:1] for name, sizes in SIZES.items()})
    page = AppTest.from_file(str(ROOT / "pages" / "tree.py"), default_timeout=60)
    started = time.perf_counter()
    page.run()
    first_sec = time.perf_counter() - started
    page.slider(key="depth").set_value(DEPTH).run()
    # This run fills the caches that are computed once per vector.
    page.number_input(key="n").set_value(16).run()
    medians = {}
    for name, sizes in args.sizes.items():
        samples = []
        # Every size is new, so no tree comes from a cache.
        for size in sizes:
            started = time.perf_counter()
            page.number_input(key="n").set_value(size).run()
            samples.append(time.perf_counter() - started)
            assert not page.exception
        medians[name] = statistics.median(samples)
        print(f"tree page, d = {DEPTH}, {name}: {medians[name] * 1e3:.0f} ms, slowest {max(samples) * 1e3:.0f} ms")
    print(f"first view, including imports and tables: {first_sec:.1f} s")
    print(json.dumps({"redraw_sec": medians, "first_view_sec": first_sec}))


if __name__ == "__main__":
    main()
