"""Read prompts from JSONL, CSV, parquet or plain text, and refuse text that no tokenizer takes."""

import csv
import io
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from .file_kinds import decode_text, describe
from .json_models import naming
from .prompt_rows import (
    Columns,
    Prompt,
    Rows,
    Taken,
    check_columns,
    is_chat,
    listed,
    shown,
    take_prompts,
    usual_column,
)
from .safe_files import MAX_BYTES, read_bytes, read_json

CANDIDATE_ROWS = 100  # rows that tell text from numbers
JSON_ROWS = "JSON: an object a line, or one list of objects (not CSV or parquet)"
ENDINGS = dict.fromkeys((".jsonl", ".jsonlines", ".ndjson", ".json"), "jsonl")
ENDINGS |= {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
SEPARATORS = (",", ";", "\t")
# The beginning of a JSON object or of a list of them, up to the end of its line; or a list of texts as a whole.
_JSON_START = re.compile(r'\s*(?:\[\s*)?\{\s*+(?:"[^\n]*[\[{,}\]])?\s*(?:\n|\Z)|\s*\[\s*"(?s:.*)"\s*\]\s*\Z')
# What is saved in place of a file: Git's pointer to it, or a page that says why there is none.
_NOT_THE_FILE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:version https://git-lfs\.|<!doctype html|<html\b)", re.IGNORECASE)


def load_prompts(path: str | Path, column: str | None = None, count: int | None = None) -> list[Prompt]:
    return prompts_from_bytes(read_bytes(path), str(path), column, count)


def prompts_from_bytes(data: bytes, name: str, column: str | None = None, count: int | None = None) -> list[Prompt]:
    """Read prompts as `taken_prompts` does, and warn of rows that are left out."""
    taken = taken_prompts(data, name, column, count)
    if taken.left_out:
        warnings.warn(f"{name}: {left_out_words(taken)}", stacklevel=2)
    return taken.prompts


def left_out_words(taken: Taken) -> str:
    return f"{taken.left_out:,} of {taken.rows:,} rows have no prompt and are left out, the first: {taken.fault}"


def taken_prompts(data: bytes, name: str, column: str | None = None, count: int | None = None) -> Taken:
    """Read prompts from a file's content, such as an upload.

    The ending of `name` decides: `.jsonl` and `.json` (one object per line, or one list), `.csv` and `.tsv` (with a
    header), and anything else is plain text with one prompt per line. Content that is JSON objects or parquet is read
    as such under any name. Empty lines of text are left out.

    Args:
        name: gives the ending, and names the file in errors.
        column: which column (in JSON, key) holds the prompts, as text or as a chat. None takes the usual names in
            their order (`prompt_rows.USUAL_COLUMNS`), or the only column of text there is.
        count: how many prompts are wanted; the rest of the file is not looked at. None takes all.
    """
    with naming(name):
        kind = _form(data, name)
        if kind == "text":
            if column is not None:
                raise ValueError(f"found plain text for column {column!r}, expected JSONL, CSV or parquet")
            taken = Taken(list(split_lines(_decoded(data))[:count]))
        else:
            taken = take_prompts(_rows(data, kind, column, count), count)
        if not taken.prompts:
            raise ValueError("found no prompts, expected at least one line")
    return taken


def split_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank; other line ends of Unicode are part of the line."""
    return [line for line in re.split("\r\n|\n|\r", text) if line.strip()]


def check_text(prompt: Prompt) -> None:
    """Refuse a prompt that no tokenizer takes: half of a surrogate pair has no UTF-8 form."""
    half = re.search("[\ud800-\udfff]", shown(prompt))
    if half:
        raise ValueError(
            f"prompt: found half of a surrogate pair (U+{ord(half[0]):04X}) at character {half.start()}, expected "
            "text that has a UTF-8 form"
        )


def prompt_columns(data: bytes, name: str) -> Columns:
    """Return the columns of a file, in its order; none for plain text."""
    with naming(name):
        kind = _form(data, name)
        if kind == "text":
            return Columns([], [], [])
        if kind == "jsonl":
            return _jsonl_columns(data)
        if kind == "parquet":
            return _parquet().parquet_columns(data)
        return _csv_table(data, kind)[0]


def _rows(data: bytes, kind: str, column: str | None, count: int | None) -> Rows:
    if kind == "jsonl":
        return _jsonl_rows(data, column)
    if kind == "parquet":
        return _parquet().parquet_rows(data, column, count)
    columns, rows = _csv_table(data, kind)
    name = columns.choose(column)
    return ((f"line {number}", dict(zip(columns.names, cells, strict=True)), name) for number, cells in rows)


def _form(data: bytes, name: str) -> str:
    """Return how to read a file's content."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
    if _NOT_THE_FILE.match(data):
        raise ValueError(f"found {describe(data)}, expected text, JSONL, CSV or parquet")
    if data.startswith(b"PAR1"):
        return "parquet"
    kind = ENDINGS.get(PurePath(name.lower()).suffix, "text")
    if kind != "parquet" and _JSON_START.match(_decoded(data)):
        kind = "jsonl"
    return kind


def _decoded(data: bytes, expected: str = "text, JSONL, CSV or parquet") -> str:
    text = decode_text(data, expected)
    if "\0" in text:
        raise ValueError(f"found binary data, expected {expected}")
    return text


def json_rows(data: bytes) -> Iterator[tuple[str, dict]]:
    """Yield location and object of every row: of JSON lines, one list, or one object.

    A bare chat becomes `messages`, and a bare text becomes `prompt`.
    """
    for where, row in json_values(data):
        row = {"messages": row} if is_chat(row) else {"prompt": row} if isinstance(row, str) else row
        if not isinstance(row, dict):
            raise ValueError(f'{where}: found {str(row)[:40]!r}, expected an object such as {{"prompt": …}}')
        check_columns(row)
        yield where, row


def json_values(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield location and value: of each line, or of the entries of one list; a chat alone is one value."""
    text = _decoded(data, JSON_ROWS)
    # other line ends may be part of a text
    lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and not text.lstrip().startswith(("{", "[", '"')):
        raise ValueError(f"{lines[0][0]}: found {lines[0][1].strip()[:40]!r}, expected {JSON_ROWS}")
    try:
        if len(lines) > 1:
            read_json(lines[0][1].encode())
    except ValueError:  # one value in several lines
        lines = [("JSON", text)]
    for where, line in lines:
        with naming(where):
            value = read_json(line.encode())
        if len(lines) == 1 and isinstance(value, list) and not is_chat(value):
            yield from ((f"entry {number}", row) for number, row in enumerate(value, start=1))
        else:
            yield where, value


def _jsonl_rows(data: bytes, column: str | None) -> Rows:
    """Yield location, object and key of its prompt; other rows may have it under another of the usual names."""
    only = column
    for where, row in json_rows(data):
        name = None
        if column is None:
            name = usual_column(key for key, value in row.items() if value) or usual_column(row)
        with naming(f"{where} (keys: {listed(row)})"):
            if name is None:
                name = only = _jsonl_columns(data).choose(None) if only is None else only
            if name not in row:
                raise ValueError(f'found {str(row)[:40]!r}, expected an object with a "{name}" of text')
        yield where, row, name


def _jsonl_columns(data: bytes) -> Columns:
    """Return the keys of the first rows; text is what all have, as text or as a chat under a usual name."""
    rows = [row for _, row in islice(json_rows(data), CANDIDATE_ROWS)]
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    nested = [key for key in names if any(isinstance(row.get(key), list | dict) for row in rows)]
    chats = [key for key in nested if usual_column([key])]
    texts = [key for key in names if key in chats or any(isinstance(row.get(key) or None, str) for row in rows)]
    whole = [key for key in texts if all(key in row for row in rows)]
    return Columns(names, whole, [key for key in nested if key not in chats])


def _csv_table(data: bytes, kind: str) -> tuple[Columns, Iterator[tuple[int, list[str]]]]:
    """Return the columns of a table, and line number and cells of each row; its first rows tell text from numbers."""
    rows = _csv_rows(_decoded(data), "\t" if kind == "tsv" else ",")
    _, header = next(rows, (0, []))
    first = list(islice(rows, CANDIDATE_ROWS))
    cells_by_column = zip(*(cells for _, cells in first), strict=True)
    texts = [name for name, cells in zip(header, cells_by_column, strict=False) if any(map(_is_text_cell, cells))]
    return Columns(header, texts, []), chain(first, rows)


def _csv_rows(text: str, usual: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells, the header first; every row as wide as the header."""
    header = text.lstrip().partition("\n")[0]
    mark = next((mark for mark in (usual, *SEPARATORS) if mark in header), usual)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    width = 0
    try:
        for cells in filter(None, reader):
            if not width:
                check_columns(cells)
                width = len(cells)
            if len(cells) != width:
                raise ValueError(f"line {reader.line_num}: found {len(cells)} cells, expected the header's {width}")
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: found broken CSV ({error}), expected quoted cells") from error


def _is_text_cell(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return bool(cell.strip())
    return False


def _parquet() -> ModuleType:
    if find_spec("pyarrow") is None:
        raise ValueError("found parquet but no pyarrow to read it, expected it installed: pip install pyarrow")
    from . import parquet_reading

    return parquet_reading
