"""What a command prints: one JSON object, or words and tables for people."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..files.safe_files import check_replaceable, visible

if TYPE_CHECKING:
    from rich.console import RenderableType


class AsItIs(str):
    """Text that is printed without wrapping: what a model wrote, commands to copy."""


def report(result: dict, as_json: bool, people: Iterable[RenderableType]) -> None:
    """Print a result: one JSON object, or for people sentences, tables and text to be left as it is."""
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for part in people:
        if isinstance(part, AsItIs):
            print(part)
        else:
            console.print(Text(visible(part), overflow="fold") if isinstance(part, str) else part)
    print(end="", flush=True)  # says nothing where stdout is closed


def tell(line: str) -> None:
    """Say on a terminal what a command chose where nothing was asked for."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


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
def held_stderr() -> Iterator[TextIO]:
    """Hold back what libraries write to stderr in the block, and give the real one; a fault's one line replaces it."""
    try:
        held, real = tempfile.TemporaryFile(), os.dup(2)
    except OSError:  # nowhere to hold it, or nothing to hold back
        yield sys.stderr
        return
    with held, open(os.dup(real), "w") as shown:
        os.dup2(held.fileno(), 2)
        try:
            yield shown
        except ValueError:
            held.truncate(0)
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            os.write(2, held.read())
