"""Read prompts from JSONL, CSV, Parquet or plain text files, and refuse text that cannot be tokenized."""

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

from .file_types import decode_text, describe
from .json_models import prefix_errors
from .libraries import missing_library_message
from .prompt_rows import (
    Columns,
    LoadedPrompts,
    Prompt,
    PromptRows,
    check_columns,
    collect_prompts,
    display_prompt,
    find_prompt_column,
    is_chat,
    join_names,
)
from .safe_files import MAX_BYTES, read_bytes, read_json

CANDIDATE_ROWS = 100  # number of rows examined to tell text columns from numeric ones
EXPECTED_TEXT = "text, JSONL, CSV or Parquet"
JSON_ROWS = "JSON: one object per line, or one list of objects (not CSV or Parquet)"
FORMATS_BY_SUFFIX = dict.fromkeys((".jsonl", ".jsonlines", ".ndjson", ".json"), "jsonl")
FORMATS_BY_SUFFIX |= {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
SEPARATORS = (",", ";", "\t")
# Matches the first line of a JSON object or of a list of objects, or a complete list of strings.
_JSON_START = re.compile(r'\s*(?:\[\s*)?\{\s*+(?:"[^\n]*[\[{,}\]])?\s*(?:\n|\Z)|\s*\[\s*"(?s:.*)"\s*\]\s*\Z')
# Matches files downloaded by mistake instead of the actual file: Git LFS pointers and web pages.
_NOT_THE_FILE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:version https://git-lfs\.|<!doctype html|<html\b)", re.IGNORECASE)


def load_prompts(path: str | Path, column: str | None = None, count: int | None = None) -> list[Prompt]:
    return prompts_from_bytes(read_bytes(path), str(path), column, count)


def prompts_from_bytes(data: bytes, name: str, column: str | None = None, count: int | None = None) -> list[Prompt]:
    """Parse prompts like `parse_prompts`, and warn about skipped rows."""
    loaded = parse_prompts(data, name, column, count)
    if loaded.left_out:
        warnings.warn(f"{name}: {skipped_rows_message(loaded)}", stacklevel=2)
    return loaded.prompts


def skipped_rows_message(loaded: LoadedPrompts) -> str:
    return f"{loaded.left_out:,} of {loaded.rows:,} rows have no prompt and were skipped; the first is {loaded.fault}"


def parse_prompts(data: bytes, name: str, column: str | None = None, count: int | None = None) -> LoadedPrompts:
    """Parse prompts from a file's content, such as an upload.

    The suffix of `name` selects the format: `.jsonl` or `.json` (one object per line, or one list), `.csv` or `.tsv`
    (with a header), `.parquet`, or else plain text with one prompt per line. JSON objects and Parquet are recognised
    under any name. Blank lines are ignored.

    Args:
        name: file name, which gives the format and is quoted in error messages.
        column: column (or JSON key) that contains the prompts, as text or as chats; None selects the first column
            named in `prompt_rows.PROMPT_COLUMNS`, or else the only text column.
        count: maximum number of prompts to read; None reads all.
    """
    with prefix_errors(name):
        file_format = _detect_format(data, name)
        if file_format == "text":
            if column is not None:
                raise ValueError(f"found plain text, which has no column {column!r}, expected JSONL, CSV or Parquet")
            loaded = LoadedPrompts(list(split_lines(_decode(data))[:count]))
        else:
            loaded = collect_prompts(_prompt_rows(data, file_format, column, count), count)
        if not loaded.prompts:
            raise ValueError("found no prompts, expected at least one line")
    return loaded


def split_lines(text: str) -> list[str]:
    """Return the non-blank lines of `text`; only line feeds and carriage returns count as line ends."""
    return [line for line in re.split("\r\n|\n|\r", text) if line.strip()]


def check_text(prompt: Prompt) -> None:
    """Refuse a prompt that cannot be encoded as UTF-8 and so cannot be tokenized."""
    try:
        display_prompt(prompt).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt: found half of a surrogate pair at character {error.start}, expected text that UTF-8 can encode"
        ) from error


def prompt_columns(data: bytes, name: str) -> Columns:
    """Return a file's columns in file order; plain text has none."""
    with prefix_errors(name):
        file_format = _detect_format(data, name)
        if file_format == "text":
            return Columns([], [], [])
        if file_format == "jsonl":
            return _jsonl_columns(data)
        if file_format == "parquet":
            return _parquet_reader().parquet_columns(data)
        return _csv_table(data, file_format)[0]


def _prompt_rows(data: bytes, file_format: str, column: str | None, count: int | None) -> PromptRows:
    if file_format == "jsonl":
        return _jsonl_rows(data, column)
    if file_format == "parquet":
        return _parquet_reader().parquet_rows(data, column, count)
    columns, rows = _csv_table(data, file_format)
    name = columns.choose(column)
    return ((f"line {number}", dict(zip(columns.names, cells, strict=True)), name) for number, cells in rows)


def _detect_format(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
    if _NOT_THE_FILE.match(data):
        raise ValueError(f"found {describe(data)}, expected {EXPECTED_TEXT}")
    if data.startswith(b"PAR1"):
        return "parquet"
    by_suffix = FORMATS_BY_SUFFIX.get(PurePath(name.lower()).suffix, "text")
    if by_suffix != "parquet" and _JSON_START.match(_decode(data)):
        return "jsonl"
    return by_suffix


def _decode(data: bytes, expected: str = EXPECTED_TEXT) -> str:
    text = decode_text(data, expected)
    if "\0" in text:
        raise ValueError(f"found binary data, expected {expected}")
    return text


def json_rows(data: bytes) -> Iterator[tuple[str, dict]]:
    """Yield each row's location and object, from JSON lines, one list, or a single object.

    A row that is a bare chat becomes an object with the key `messages`, and a bare string one with the key `prompt`.
    """
    for where, row in json_values(data):
        if is_chat(row):
            row = {"messages": row}
        elif isinstance(row, str):
            row = {"prompt": row}
        if not isinstance(row, dict):
            raise ValueError(f'{where}: found {str(row)[:40]!r}, expected an object such as {{"prompt": …}}')
        check_columns(row)
        yield where, row


def json_values(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the location and value of each line, or of each entry of a single list; a chat counts as one value."""
    text = _decode(data, JSON_ROWS)
    # Split only at line feeds, because a prompt may contain other line separators.
    lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and not text.lstrip().startswith(("{", "[", '"')):
        raise ValueError(f"{lines[0][0]}: found {lines[0][1].strip()[:40]!r}, expected {JSON_ROWS}")
    try:
        if len(lines) > 1:
            read_json(lines[0][1].encode())
    except ValueError:  # The first line is not a complete value, so the whole text is one value.
        lines = [("JSON", text)]
    for where, line in lines:
        with prefix_errors(where):
            value = read_json(line.encode())
        if len(lines) == 1 and isinstance(value, list) and not is_chat(value):
            yield from ((f"entry {number}", row) for number, row in enumerate(value, start=1))
        else:
            yield where, value


def _jsonl_rows(data: bytes, column: str | None) -> PromptRows:
    """Yield each row's location, object and prompt key; if `column` is None, the usual key may differ between rows."""
    only = column
    for where, row in json_rows(data):
        name = None
        if column is None:
            name = find_prompt_column(key for key, value in row.items() if value) or find_prompt_column(row)
        with prefix_errors(f"{where} (keys: {join_names(row)})"):
            if name is None:
                if only is None:
                    only = _jsonl_columns(data).choose(None)
                name = only
            if name not in row:
                raise ValueError(f'found {str(row)[:40]!r}, expected an object with the key "{name}"')
        yield where, row, name


def _jsonl_columns(data: bytes) -> Columns:
    """Return the columns found in the first rows; text columns must occur in each of these rows."""
    rows = [row for _, row in islice(json_rows(data), CANDIDATE_ROWS)]
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    nested = [key for key in names if any(isinstance(row.get(key), list | dict) for row in rows)]
    chats = [key for key in nested if find_prompt_column([key])]
    texts = [key for key in names if key in chats or any(isinstance(row.get(key) or None, str) for row in rows)]
    whole = [key for key in texts if all(key in row for row in rows)]
    return Columns(names, whole, [key for key in nested if key not in chats])


def _csv_table(data: bytes, file_format: str) -> tuple[Columns, Iterator[tuple[int, list[str]]]]:
    """Return a table's columns, and an iterator over each row's line number and cells."""
    rows = _csv_rows(_decode(data), "\t" if file_format == "tsv" else ",")
    _, header = next(rows, (0, []))
    first = list(islice(rows, CANDIDATE_ROWS))
    cells_by_column = zip(*(cells for _, cells in first), strict=True)
    texts = [name for name, cells in zip(header, cells_by_column, strict=False) if any(map(_is_text_cell, cells))]
    return Columns(header, texts, []), chain(first, rows)


def _csv_rows(text: str, usual: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's line number and cells, starting with the header; all rows must be as wide as the header."""
    header = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in (usual, *SEPARATORS) if mark in header), usual)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    width = 0
    try:
        for cells in filter(None, reader):
            if not width:
                check_columns(cells)
                width = len(cells)
            if len(cells) != width:
                raise ValueError(f"line {reader.line_num}: found {len(cells)} cells, expected {width} as in the header")
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(
            f"line {reader.line_num}: found invalid CSV ({error}), expected properly quoted cells"
        ) from error


def _is_text_cell(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return bool(cell.strip())
    return False


def _parquet_reader() -> ModuleType:
    if find_spec("pyarrow") is None:
        raise ValueError(missing_library_message("pyarrow"))
    from . import parquet_reading

    return parquet_reading
