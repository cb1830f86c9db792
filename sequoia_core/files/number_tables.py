"""Read numbers from text: a column, a row, or a table with ranks, headers, decimal commas and % signs."""

import csv
import re
from typing import NamedTuple

from .file_types import decode_text
from .prompt_rows import check_columns

EXPECTED_COLUMNS = "one column of numbers, or ranks and numbers"
VALUE_COLUMNS = ("probability", "probabilities", "prob", "probs", "p", "acceptance", "rate", "survival")


class NumberColumn(NamedTuple):
    """Numbers in rank order.

    Attributes:
        values: the numbers; those with a % sign are divided by 100.
        first: the first rank in the file, 0 or 1; None if the file contains no ranks.
        header: column names in lower case; empty if there is no header.
        percent: whether all numbers have a % sign; otherwise none has.
    """

    values: list[float]
    first: int | None
    header: tuple[str, ...]
    percent: bool


class _Cell(NamedTuple):
    """A number, whether it has a % sign, and its line in the file, counted from 1."""

    number: float
    percent: bool
    line: int


def number_column(data: bytes) -> NumberColumn:
    """Read a column of numbers from UTF-8 or UTF-16 text."""
    rows, header = _read_rows(data)
    if len(rows) == 1 and not (len(rows[0]) == 2 and rows[0][0].number == 1):
        return _column(rows[0], None, header)
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"found rows of different lengths, expected {EXPECTED_COLUMNS}")
    if len(rows[0]) > 2:
        rows = _select_columns(rows, header)
    if len(rows[0]) == 1:
        return _column([row[0] for row in rows], None, header)
    rows = sorted(rows, key=lambda row: row[0].number)
    first = rows[0][0].number
    if first not in (0, 1) or [rank.number for rank, _ in rows] != [first + index for index in range(len(rows))]:
        raise ValueError("found missing or repeated ranks, expected 1, 2, 3, ... (or 0, 1, 2, ...)")
    return _column([value for _, value in rows], int(first), header)


def _column(cells: list[_Cell], first: int | None, header: tuple[str, ...]) -> NumberColumn:
    percent = cells[0].percent
    different = next((cell for cell in cells if cell.percent != percent), None)
    if different is not None:
        found = "without" if percent else "with"
        raise ValueError(
            f"line {different.line}: found a value {found} a % sign, expected % signs on all values or on none"
        )
    return NumberColumn([cell.number for cell in cells], first, header, percent)


def _select_columns(rows: list[list[_Cell]], header: tuple[str, ...]) -> list[list[_Cell]]:
    """Return a table's rank column, if any, and its value column."""
    if len(header) < len(rows[0]):
        header = ("", *header)  # The first column is an unnamed row index.
    value = next((header.index(name) for name in VALUE_COLUMNS if name in header), None)
    rank = next((column for column, name in enumerate(header) if name in ("rank", "position")), None)
    if value is None or len(header) != len(rows[0]):
        named = ", ".join(filter(None, header))[:80] or f"1 to {len(rows[0])} without names"
        raise ValueError(f"found columns {named}, expected {EXPECTED_COLUMNS}")
    return [[row[column] for column in (rank, value) if column is not None] for row in rows]


def _read_rows(data: bytes) -> tuple[list[list[_Cell]], tuple[str, ...]]:
    text = decode_text(data, "numbers").lstrip("\ufeff")
    # Drop spaces before % signs, for which a regular expression would take quadratic time.
    text = "%".join(part.rstrip(" \xa0\u202f") for part in text.split("%"))
    lines = [line.strip(" ") for line in text.splitlines()]
    lines = ["" if line.startswith("#") else line for line in lines]
    delimiter = next((mark for mark in ";\t" if any(mark in line.strip() for line in lines)), ",")
    if delimiter == "," and _has_decimal_commas(lines):
        delimiter = ";"
    if delimiter == "," and not any("," in line for line in lines):
        lines = [",".join(line.split()) for line in lines]
    try:
        table = enumerate(csv.reader(lines, delimiter=delimiter), start=1)
        rows = [(line, cells) for line, row in table if any(cells := [cell.strip() for cell in row])]
    except csv.Error as error:
        raise ValueError(f"found text that is not a table ({error}), expected {EXPECTED_COLUMNS}") from error
    header: tuple[str, ...] = ()
    if rows and _is_header([row for _, row in rows[:2]]):
        header = tuple(cell.lower() for cell in rows[0][1] if cell)
        check_columns(header)
        del rows[0]
    if not rows:
        raise ValueError(f"found no numbers, expected {EXPECTED_COLUMNS}")
    return [[_require_number(cell, line) for cell in row if cell] for line, row in rows], header


def _is_header(cells: list[list[str]]) -> bool:
    if all(_parse_number(cell) is None for cell in cells[0]):
        return True
    # pandas leaves the name of its index column empty, and names an unnamed column 0.
    return not cells[0][0] and len(cells) > 1 and bool(cells[1][0])


def _has_decimal_commas(lines: list[str]) -> bool:
    """Return whether lines such as `0,77` are numbers with a decimal comma, not pairs such as rank 0, number 77."""
    numbers = [line for line in lines if re.match(r"[\d\"]", line)]
    if not numbers or not all(re.fullmatch(r"\d{1,3},\d+%?", line) for line in numbers):
        return False
    whole = [int(line.split(",")[0]) for line in numbers]
    if len(whole) == 1:
        return whole != [1] and (whole == [0] or numbers[0].endswith("%"))
    return whole != sorted(set(whole))  # ranks increase


def _require_number(cell: str, line: int) -> _Cell:
    number = _parse_number(cell)
    if number is None:
        raise ValueError(f"found {cell[:40]!r}, expected a number")
    percent = cell.endswith("%")
    return _Cell(number / 100 if percent else number, percent, line)


def _parse_number(cell: str) -> float | None:
    try:
        return float(cell.removesuffix("%").replace(",", "."))
    except ValueError:
        return None
