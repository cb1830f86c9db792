"""Code shared by benchmarks: options with --quick, the day's record, exits for missing requirements, and timing."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

import sequoia_extras  # noqa: F401  a checkout may not be installed

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REPEATS = 3
MISSING = 77  # exit code if a benchmark cannot run here


class Options(argparse.ArgumentParser):
    """A benchmark's command-line parser, with its docstring as the description, and --quick."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument(
            "--quick", action="store_true", help="run everything once at the smallest sizes, and write no record"
        )

    def read(self, **quick: object) -> argparse.Namespace:
        """Parse the command line; --quick replaces defaults with `quick`."""
        if self.parse_args().quick:
            self.set_defaults(**quick)
        return self.parse_args()


def require(*distributions: str) -> None:
    """Call `unavailable` if a distribution is not installed."""
    for name in distributions:
        try:
            version(name)
        except PackageNotFoundError:
            unavailable(f"This benchmark needs {name}, which is not installed.")


def unavailable(sentence: str) -> NoReturn:
    """Exit with code 77 and a sentence that explains why the benchmark cannot run here."""
    print(sentence)
    sys.exit(MISSING)


def record_path(name: str) -> Path:
    return RESULTS / f"{name}-{date.today().isoformat()}.json"


def read_record(name: str, args: argparse.Namespace) -> dict:
    """Return today's record so far; empty with --quick."""
    path = record_path(name)
    return json.loads(path.read_text()) if path.exists() and not args.quick else {}


def write_record(name: str, record: dict, args: argparse.Namespace, *, indent: int | None = 1) -> None:
    """Write today's record, unless with --quick."""
    if not args.quick:
        record_path(name).write_text(json.dumps(record, indent=indent) + "\n")


def median_sec(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of a call, after a warm-up call."""
    run()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
