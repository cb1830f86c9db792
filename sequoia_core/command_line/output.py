"""What a command prints: one JSON object or a table, progress, one line for a fault."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files.safe_files import check_replaceable


def report(result: dict, as_json: bool) -> None:
    """Print a result: one JSON object, or a table for people (long lists shortened)."""
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for key, value in result.items():
        table.add_row(key, value if isinstance(value, str) else _short(value))
    Console().print(table, markup=False)
    print(end="", flush=True)  # says nothing where stdout is closed


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 400 else text[:400] + " …"


def tell(line: str) -> None:
    """Say on a terminal what a command chose where nothing was asked for."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def progress_bar(as_json: bool):
    """Return a progress callback that writes to a terminal, or None where nobody watches."""
    if as_json or not sys.stderr.isatty():
        return None

    def show(fraction: float, message: str) -> None:
        end = "\n" if fraction >= 1.0 else ""
        print(f"\r{fraction:5.0%} {message:<50}", end=end, file=sys.stderr, flush=True)

    return show


def check_out(out: Path | None) -> None:
    """Refuse an unwritable place before the work, not after it."""
    if out is None:
        return
    try:
        check_replaceable(out)
        folder = Path(os.path.realpath(out)).parent
        if not folder.is_dir():
            raise ValueError(f"{out}: found no folder {folder}, expected an existing one")
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be written ({error.strerror}), expected a writable place") from error
    except ValueError as error:
        raise ValueError(f"--out {error}") from error


@contextmanager
def held_stderr() -> Iterator[None]:
    """Hold back what libraries themselves write to stderr in the block; a ValueError's one line takes its place.

    A panic of Rust code prints lines of its own before anybody can catch it.
    """
    try:
        held, real = tempfile.TemporaryFile(), os.dup(2)
    except OSError:  # nowhere to hold it, or nothing to hold back
        yield
        return
    with held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except ValueError:
            held.truncate(0)
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            os.write(2, held.read())
