"""Prompts from a column of a parquet file, unpacked in a child process, because its claimed sizes may be wrong."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from .bounded_process import BoundedProcess, LimitError

MAX_TEXT_CHARS = 64 * 2**20  # parquet is compressed, so the unpacked text is limited too
READER: dict[str, Any] = {
    "module": f"{__package__}.parquet_reading", "function": "read", "memory_bytes": 2**30, "seconds": 20,
    "answer_bytes": 4 * MAX_TEXT_CHARS,
}  # fmt: skip


def parquet_columns(data: bytes) -> list[str]:
    """Return the columns of type string."""
    return _asked(request("columns", data))


def parquet_prompts(data: bytes, column: str | None) -> list[str]:
    """Return the texts of a column without empty ones."""
    return _asked(request("prompts", data, column))


def request(wanted: str, data: bytes, column: str | None = None) -> bytes:
    """Return what `parquet_reading.read` takes."""
    return json.dumps([wanted, column, MAX_TEXT_CHARS]).encode() + b"\n" + data


def _asked(question: bytes) -> Any:
    if find_spec("pyarrow") is None:
        raise ValueError("found parquet but no pyarrow to read it, expected it installed: pip install pyarrow")
    try:
        with BoundedProcess(**READER) as reader:
            return reader.ask(question)
    except LimitError as error:
        raise ValueError(f"found parquet that {error}, expected at most {MAX_TEXT_CHARS:,} characters") from error
