"""A server's result as one row of a table, to put next to others. Cells that are not known are empty."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sequoia_core.command_line.formatting import format_interval

from .chain_acceptance import ChainAcceptance, chain_acceptance
from .counts import ServerCounts
from .request_spread import exclude_collapse

# `acceptance` is the share of drafts accepted up to each position, with its interval; `speedup` is measured.
COLUMNS = "model engine version hardware drafter k batch acceptance tokens_per_step speedup date source".split()
GIVEN_COLUMNS = ("model", "engine", "version", "hardware", "drafter", "date", "source")  # may be given by the user
Timed = Sequence[tuple[int, float, int, int | None]]  # K, tokens per second, batch size, context


def parse_cells(cells: Sequence[str], *, row: bool) -> dict[str, str]:
    """Return the cells given as name=value; `row`: whether a row is printed."""
    if cells and not row:
        raise ValueError("--cell: found it without --row, expected both")
    given = {}
    for cell in cells:
        name, _, value = map(str.strip, cell.partition("="))
        if name not in GIVEN_COLUMNS or not value:
            raise ValueError(f"--cell: found {cell[:40]!r}, expected one of {', '.join(GIVEN_COLUMNS)}, = and its text")
        given[name] = value
    return given


def result_row(
    counts: ServerCounts, timed: Timed, given: dict[str, str], chains: ChainAcceptance | None = None
) -> dict[str, Any]:
    """Return the row of `COLUMNS`.

    Args:
        given: cells that the counts do not tell, or that replace theirs.
        chains: the acceptance of the counts, if it is known already.
    """
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name in ("model", "engine", "drafter", "tokens_per_step", "source"):
        row[name] = getattr(counts, name) or None
    with suppress(ValueError):  # the source may not count positions
        chains = chains or chain_acceptance(exclude_collapse(counts))
    if chains is not None and chains.fitted is None:
        row["k"] = chains.current
        row["acceptance"] = list(map(list, chains.survived))
    for zero, plain, *load in timed:
        for k, rate, *other in timed:
            # Speeds at different loads are never compared.
            if zero == 0 < k == row["k"] and load == other:
                row |= {"batch": load[0], "speedup": rate / plain}
    return row | given


def acceptance_text(row: dict[str, Any]) -> str:
    """Return a row's acceptance by position."""
    return ", ".join(format_interval(*part) for part in row["acceptance"] or ())


def markdown_table(row: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table with a row and a header."""
    cells = []
    for value in (row | {"acceptance": acceptance_text(row)}).values():
        text = f"{value:.2f}" if isinstance(value, float) else str(value or "")
        cells.append(" ".join(text.replace("|", "\\|").split()))
    return [f"| {' | '.join(line)} |" for line in (COLUMNS, ["---"] * len(COLUMNS), cells)]
