"""A server's result as one row of a table, to put next to others. Cells that are not known are empty."""

from contextlib import suppress
from typing import Any

from sequoia_core.command_line.formatting import format_interval
from sequoia_core.command_line.output import Verbatim, report

from .chain_acceptance import chain_acceptance
from .counts import ServerCounts
from .options import parse_timed
from .request_spread import exclude_collapse

# `acceptance` is the share of drafts accepted up to each position, with its interval; `speedup` is measured.
COLUMNS = "model engine version hardware drafter k batch acceptance tokens_per_step speedup date".split()


def result_row(counts: ServerCounts, timed: str | None) -> dict[str, Any]:
    """Return the row of `COLUMNS`; `timed` is the text of --timed."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name in ("model", "engine", "drafter", "tokens_per_step"):
        row[name] = getattr(counts, name) or None
    with suppress(ValueError):  # the source may not count positions
        chains = chain_acceptance(exclude_collapse(counts))
        row["k"] = chains.current
        bounds = (chains.low, chains.high) if chains.has_interval else [[None] * chains.longest] * 2
        row["acceptance"] = [list(part) for part in zip(chains.survival.tolist(), *map(list, bounds), strict=True)]
    settings = [parse_timed(part) for part in timed.split(",")] if timed else []
    for zero, plain, *load in settings:
        for k, rate, *other in settings:
            # Speeds at different loads are never compared.
            if zero == 0 < k == row["k"] and load == other:
                row |= {"batch": load[0], "speedup": rate / plain}
    return row


def report_row(counts: ServerCounts, timed: str | None, as_json: bool) -> None:
    """Print a row as JSON or as a Markdown table with a header."""
    row = result_row(counts, timed)
    cells = []
    for value in row.values():
        if isinstance(value, list):
            value = ", ".join(format_interval(*part) for part in value)
        elif isinstance(value, float):
            value = f"{value:.2f}"
        cells.append(" ".join(str(value or "").replace("|", "\\|").split()))
    lines = [f"| {' | '.join(line)} |" for line in (COLUMNS, ["---"] * len(COLUMNS), cells)]
    report(row, as_json, map(Verbatim, lines))
