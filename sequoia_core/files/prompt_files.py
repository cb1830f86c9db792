"""Read prompts from JSONL, CSV, parquet or plain text, and refuse text that no tokenizer takes."""

import csv
import io
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from .bounded_process import BoundedProcess, LimitError
from .file_kinds import decode_text
from .json_models import naming
from .prompt_rows import check_few, choose_column, is_chat, listed, prompt_of, usual_column
from .safe_files import read_bytes, read_json

MAX_PROMPT_BYTES = 16 * 2**20
CANDIDATE_ROWS = 100  # rows looked at to tell text from numbers
MAX_TEXT_CHARS = 64 * 2**20  # parquet is compressed, so the unpacked text is limited too
READER: dict[str, Any] = {
    "module": f"{__package__}.parquet_reading", "function": "read", "memory_bytes": 2**30, "seconds": 20,
    "answer_bytes": 4 * MAX_TEXT_CHARS,
}  # fmt: skip
JSON_ROWS = "JSON: an object a line, or one list of objects (not CSV or parquet)"


def load_prompts(path: str | Path, column: str | None = None) -> list[str]:
    return prompts_from_bytes(read_bytes(path, limit=MAX_PROMPT_BYTES), str(path), column)


def prompts_from_bytes(data: bytes, name: str, column: str | None = None) -> list[str]:
    """Read prompts from a file's content, such as an upload.

    The ending of `name` decides: `.jsonl` and `.json` (one object per line, or one list), `.csv` and `.tsv` (with a
    header), `.parquet`, and anything else is plain text with one prompt per line. Empty lines, cells and rows are left
    out.

    Args:
        name: gives the ending, and names the file in errors.
        column: which column (in JSON, key) holds the prompts, as text or as a chat. None takes the usual names in
            their order (`prompt_rows.USUAL_COLUMNS`), or the only column of text there is.
    """
    with naming(name):
        if len(data) > MAX_PROMPT_BYTES:
            raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_PROMPT_BYTES:,}")
        kind = _kind(name)
        if kind == "text":
            if column is not None:
                raise ValueError(f"found plain text for column {column!r}, expected JSONL, CSV or parquet")
            prompts = split_lines(_decoded(data))
        else:
            prompts = _READERS[kind](data, column)
        if not prompts:
            raise ValueError("found no prompts, expected at least one line")
    return prompts


def split_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank; other line ends of Unicode are part of the line."""
    return [line for line in re.split("\r\n|\n|\r", text) if line.strip()]


def check_text(text: str) -> None:
    """Refuse a prompt that no tokenizer takes: half of a surrogate pair has no UTF-8 form."""
    half = re.search("[\ud800-\udfff]", text)
    if half:
        raise ValueError(
            f"prompt: found half of a surrogate pair (U+{ord(half[0]):04X}) at character {half.start()}, expected "
            "text that has a UTF-8 form"
        )


def text_columns(data: bytes, name: str) -> list[str]:
    """Return the columns of a file that could hold prompts, in the file's order; none for plain text."""
    with naming(name):
        kind = _kind(name)
        return [] if kind == "text" else _COLUMNS[kind](data)


def _kind(name: str) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv"}
    return (endings | {".parquet": "parquet"}).get(PurePath(name).suffix.lower(), "text")


def _decoded(data: bytes, expected: str = "text, JSONL, CSV or parquet") -> str:
    text = decode_text(data, expected)
    if "\0" in text:
        raise ValueError(f"found binary data, expected {expected}")
    return text


def json_rows(data: bytes) -> Iterator[tuple[str, dict]]:
    """Yield location and object of every row: of JSON lines, one list, or one object; a bare chat as `messages`."""
    for where, row in _json_values(data):
        row = {"messages": row} if is_chat(row) else row
        if not isinstance(row, dict):
            raise ValueError(f'{where}: found {str(row)[:40]!r}, expected an object such as {{"prompt": …}}')
        check_few(row)
        yield where, row


def _json_values(data: bytes) -> Iterator[tuple[str, Any]]:
    text = _decoded(data, JSON_ROWS)
    # other line ends may be part of a text
    lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    try:
        first = [] if not lines else _json_line(*lines[0])
    except ValueError as error:
        if not text.lstrip().startswith(("{", "[")):
            raise ValueError(f"{lines[0][0]}: found {lines[0][1].strip()[:40]!r}, expected {JSON_ROWS}") from error
        try:
            whole = read_json(data)
        except ValueError as fault:
            raise (fault if text.lstrip().startswith("[") else error) from None
        lines, first = lines[:1], whole if isinstance(whole, list) else [whole]
    if len(lines) <= 1 and isinstance(first, list) and not is_chat(first):
        yield from ((f"entry {number}", row) for number, row in enumerate(first, start=1))
    else:
        yield from ((where, _json_line(where, line)) for where, line in lines)


def _json_line(where: str, line: str) -> Any:
    with naming(where):
        return read_json(line.encode())


def _jsonl_prompts(data: bytes, column: str | None) -> list[str]:
    prompts, only = [], column
    for where, row in json_rows(data):
        usual = usual_column(name for name, value in row.items() if value) if column is None else None
        try:
            if only is None:
                only = usual or choose_column(list(row), _jsonl_columns(data), None)
            name = usual or only
            prompts.append(prompt_of(row, name) if row.get(name) else "")
            if not prompts[-1]:
                raise ValueError(f'found {str(row)[:40]!r}, expected an object with a "{name}" of text')
        except ValueError as error:
            raise ValueError(f"{where} (keys: {listed(row)}): {error}") from error
    return prompts


def _jsonl_columns(data: bytes) -> list[str]:
    """Return the keys that hold text, or a chat under a usual name, in all of the first rows."""
    keys: list[str] | None = None
    for _, row in islice(json_rows(data), CANDIDATE_ROWS):
        here = [key for key, value in row.items() if value and (isinstance(value, str) or _is_chat_column(key, value))]
        keys = here if keys is None else [key for key in keys if key in here]
    return keys or []


def _is_chat_column(key: str, value: object) -> bool:
    return isinstance(value, list) and usual_column([key]) is not None


def _csv_rows(data: bytes, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells, the header first; every row as wide as the header."""
    reader = csv.reader(io.StringIO(_decoded(data), newline=""), delimiter=delimiter, strict=True)
    width = 0
    try:
        for cells in reader:
            if not cells:
                continue
            width = width or len(check_few(cells))
            if len(cells) != width:
                raise ValueError(f"line {reader.line_num}: found {len(cells)} cells, expected the header's {width}")
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: found broken CSV ({error}), expected quoted cells") from error


def _csv_prompts(data: bytes, column: str | None, delimiter: str = ",") -> list[str]:
    rows = _csv_rows(data, delimiter)
    header = next(rows, (0, []))[1]
    name = choose_column(header, _csv_columns(data, delimiter), column)
    prompts = []
    for number, cells in rows:
        row = dict(zip(header, cells, strict=True))
        with naming(f"line {number}"):
            prompts += [prompt_of(row, name)] if row[name].strip() else []
    return prompts


def _csv_columns(data: bytes, delimiter: str = ",") -> list[str]:
    """Return the columns whose first cells are not all numbers."""
    rows = _csv_rows(data, delimiter)
    header = next(rows, (0, []))[1]
    textual = [False] * len(header)
    for (_, cells), _ in zip(rows, range(CANDIDATE_ROWS), strict=False):
        textual = [known or _is_text_cell(cell) for known, cell in zip(textual, cells, strict=True)]
    return [name for name, text in zip(header, textual, strict=True) if text]


def _is_text_cell(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return bool(cell.strip())
    return False


def request(wanted: str, data: bytes, column: str | None = None) -> bytes:
    """Return what `parquet_reading.read` takes."""
    return json.dumps([wanted, column, MAX_TEXT_CHARS]).encode() + b"\n" + data


def _asked(question: bytes) -> Any:
    """Unpack parquet in a child process, because its claimed sizes may be wrong."""
    if find_spec("pyarrow") is None:
        raise ValueError("found parquet but no pyarrow to read it, expected it installed: pip install pyarrow")
    try:
        with BoundedProcess(**READER) as reader:
            return reader.ask(question)
    except LimitError as error:
        raise ValueError(f"found parquet that {error}, expected at most {MAX_TEXT_CHARS:,} characters") from error


_READERS = {
    "jsonl": _jsonl_prompts,
    "csv": _csv_prompts,
    "tsv": lambda data, column: _csv_prompts(data, column, "\t"),
    "parquet": lambda data, column: _asked(request("prompts", data, column)),
}
_COLUMNS = {
    "jsonl": _jsonl_columns,
    "csv": _csv_columns,
    "tsv": lambda data: _csv_columns(data, "\t"),
    "parquet": lambda data: _asked(request("columns", data)),
}
