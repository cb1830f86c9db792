"""Print command results as one JSON object, or as text and tables."""

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


class Verbatim(str):
    """Text that is printed without wrapping, such as model output or a command to copy."""


def report(result: dict, as_json: bool, parts: Iterable[RenderableType]) -> None:
    """Print a result as one JSON object, or print its report's `parts`: sentences, tables and `Verbatim` text."""
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, Verbatim):
            print(part)
        else:
            console.print(Text(visible(part), overflow="fold") if isinstance(part, str) else part)
    print(end="", flush=True)  # Flush, so that an error in writing to stdout is raised here.


def print_note(line: str) -> None:
    """Print a note, such as which default was chosen, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def check_output_path(out: Path | None) -> None:
    """Raise ValueError for a path that cannot be written, before any work begins."""
    if out is None:
        return
    try:
        check_replaceable(out)
        folder = Path(os.path.realpath(out)).parent
        if not folder.is_dir():
            raise ValueError(f"{out}: the folder {folder} does not exist")
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be written ({error.strerror}), expected a writable path") from error
    except ValueError as error:
        raise ValueError(f"--out {error}") from error


@contextmanager
def buffered_stderr() -> Iterator[TextIO]:
    """Buffer what libraries write to stderr, and yield the real stderr; a ValueError discards the buffer."""
    try:
        buffer = tempfile.TemporaryFile()
        real = os.dup(2)
    except OSError:  # There is no temporary folder, or stderr is closed.
        yield sys.stderr
        return
    with buffer, open(os.dup(real), "w") as stream:
        os.dup2(buffer.fileno(), 2)
        try:
            yield stream
        except ValueError:
            buffer.truncate(0)
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
            buffer.seek(0)
            os.write(2, buffer.read())
