"""A column of numbers as text: alone, in one row, or beside ranks; decimal commas, headers and an index are fine."""

import csv
import re
from typing import NamedTuple

from .file_kinds import decode_text
from .prompt_rows import check_columns

EXPECTED = "one column of numbers, or ranks and numbers"
NUMBERS = ("probability", "probabilities", "prob", "probs", "p", "acceptance", "rate", "survival")  # columns taken


class NumberColumn(NamedTuple):
    """Numbers in the order of their ranks.

    Attributes:
        first: what the ranks beside them begin with, 0 or 1; None where there are none.
        header: names of the columns, in lower case; empty without a header.
    """

    values: list[float]
    first: int | None
    header: tuple[str, ...]


def number_column(data: bytes) -> NumberColumn:
    """Read the numbers of a text, UTF-8 or UTF-16."""
    rows, header = _rows(data)
    if len(rows) == 1 and not (len(rows[0]) == 2 and rows[0][0] == 1):
        return NumberColumn(rows[0], None, header)
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"found rows of other lengths, expected {EXPECTED}")
    if len(rows[0]) > 2:
        rows = _chosen(rows, header)
    if len(rows[0]) == 1:
        return NumberColumn([row[0] for row in rows], None, header)
    rows = sorted(rows, key=lambda row: row[0])
    first = rows[0][0]
    if first not in (0, 1) or [rank for rank, _ in rows] != [first + index for index in range(len(rows))]:
        raise ValueError("found ranks with gaps or repeats, expected 1, 2, 3, ... (or 0, 1, 2, ...)")
    return NumberColumn([value for _, value in rows], int(first), header)


def _chosen(rows: list[list[float]], header: tuple[str, ...]) -> list[list[float]]:
    """Return the columns of ranks and of numbers among several, without an index that counts the rows."""
    if len(header) < len(rows[0]):
        header = ("", *header)  # the index has no name
    value = next((header.index(name) for name in NUMBERS if name in header), None)
    rank = next((column for column, name in enumerate(header) if name in ("rank", "position")), None)
    if value is None or len(header) != len(rows[0]):
        named = ", ".join(filter(None, header))[:80] or f"{len(rows[0])} without names"
        raise ValueError(f"found columns {named}, expected {EXPECTED}")
    return [[row[column] for column in (rank, value) if column is not None] for row in rows]


def _rows(data: bytes) -> tuple[list[list[float]], tuple[str, ...]]:
    lines = [line.strip(" ") for line in decode_text(data, "numbers").lstrip("\ufeff").splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    delimiter = next((mark for mark in ";\t" if any(mark in line.strip() for line in lines)), ",")
    if delimiter == "," and _has_decimal_commas(lines):
        delimiter = ";"
    if delimiter == "," and not any("," in line for line in lines):
        lines = [",".join(line.split()) for line in lines]
    try:
        cells = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    except csv.Error as error:
        raise ValueError(f"found text that is no table ({error}), expected {EXPECTED}") from error
    cells = [row for row in cells if any(row)]
    header: tuple[str, ...] = ()
    # pandas writes an index under a name that is empty, and a column without a name as 0
    if cells and (all(_number(cell) is None for cell in cells[0]) or (not cells[0][0] and cells[1:] and cells[1][0])):
        header, cells = tuple(cell.lower() for cell in cells[0] if cell), cells[1:]
        check_columns(header)
    table: list[list[float]] = []
    for row in cells:
        filled = [cell for cell in row if cell]
        numbers = [_number(cell) for cell in filled]
        if None in numbers:
            raise ValueError(f"found {filled[numbers.index(None)][:40]!r}, expected a number")
        table.append([number for number in numbers if number is not None])
    if not table:
        raise ValueError(f"found no numbers, expected {EXPECTED}")
    return table, header


def _has_decimal_commas(lines: list[str]) -> bool:
    """Tell `0,77` (one number) from `1,0.77` (rank and probability): ranks run upwards, decimals do not."""
    numbers = [line for line in lines if re.match(r"[\d\"]", line)]
    if not numbers or not all(re.fullmatch(r"[01],\d+", line) for line in numbers):
        return False
    whole = [int(line[0]) for line in numbers]
    return whole != [1] and (len(whole) == 1 or whole != [whole[0] + i for i in range(len(whole))])


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "."))
    except ValueError:
        return None
