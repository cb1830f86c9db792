"""Time what the server does when a slider of the tree page moves: the page's whole script, browser left out.

python benchmarks/pages.py            # a table, one JSON line last
"""

import json
import logging
import statistics
import time
from pathlib import Path

logging.disable(logging.WARNING)  # running without a browser is the point here

from streamlit.testing.v1 import AppTest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

DEPTH = 8
SIZES = {
    "n <= 128": range(20, 128, 12), "n <= 512": range(130, 512, 42), "n <= 1024": range(540, 1024, 54),
    "n <= 2048": range(1100, 2048, 110),
}  # fmt: skip


def main() -> None:
    page = AppTest.from_file(str(ROOT / "pages" / "tree.py"), default_timeout=60)
    started = time.perf_counter()
    page.run()
    first_sec = time.perf_counter() - started
    page.slider(key="depth").set_value(DEPTH).run()
    page.number_input(key="n").set_value(16).run()  # what is computed once per vector is in the caches from here on
    medians = {}
    for name, sizes in SIZES.items():
        samples = []
        for size in sizes:  # every size for the first time: no tree comes from a cache
            started = time.perf_counter()
            page.number_input(key="n").set_value(size).run()
            samples.append(time.perf_counter() - started)
            assert not page.exception
        medians[name] = statistics.median(samples)
        print(f"tree page, d = {DEPTH}, {name}: {medians[name] * 1e3:.0f} ms, slowest {max(samples) * 1e3:.0f} ms")
    print(f"first view, libraries and tables included: {first_sec:.1f} s")
    print(json.dumps({"redraw_sec": medians, "first_view_sec": first_sec}))


if __name__ == "__main__":
    main()
