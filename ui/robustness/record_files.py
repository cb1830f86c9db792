"""Robustness evidence to and from files: one part as JSON, its tables as CSV. No Streamlit here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sequoia_core.files.safe_files import json_bytes, read_bytes
from ui.robustness.records import PARTS
from ui.robustness.wording import Row

FORMAT, VERSION = "sequoia-evidence", 1


def to_json(part: str, record: Row) -> bytes:
    """Write one part with its settings, as `load` reads it."""
    return json_bytes({"format": FORMAT, "version": VERSION, part: record})


def to_csv(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """Write rows with the settings they were measured at as further columns: every row stands alone."""
    table = [{**row, **{name: value for name, value in settings.items() if name not in row}} for row in rows]
    return pd.DataFrame(table, dtype=object).map(_plain).to_csv(index=False) if table else ""


def _plain(value: Any) -> Any:
    """Fit a value into one field; text that a spreadsheet would take for a formula is quoted."""
    if isinstance(value, list | tuple):
        return json.dumps(value)
    if isinstance(value, str) and (value.startswith(tuple("=+-@")) or not value.isprintable()):
        return repr(value)
    return value


def load(path: str | Path) -> dict[str, Row]:
    """Read the parts of a file that `to_json` wrote, or several in one.

    Raises:
        ValueError: naming the file, what was found and what was expected.
    """
    try:
        held = json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: found no JSON, expected an object of format {FORMAT!r}") from error
    found = held.get("format") if isinstance(held, dict) else type(held).__name__
    if found != FORMAT or held.get("version") != VERSION:
        raise ValueError(f"{path}: found {found!r}, expected format {FORMAT!r}, version {VERSION}")
    return {part: held[part] for part in PARTS if part in held}
