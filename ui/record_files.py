"""What was measured as files: a part of the evidence as JSON, which `ui.session.evidence` reads, and tables as CSV."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sequoia_core.files.safe_files import json_bytes
from ui.session.evidence import FORMAT, VERSION


def to_json(part: str, record: Mapping[str, Any]) -> bytes:
    """Write one part with its settings, as `ui.session.evidence.load` reads it."""
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
