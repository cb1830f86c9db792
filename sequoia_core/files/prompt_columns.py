"""Which column of a table holds the prompts. Knows names of columns only."""

from __future__ import annotations

from collections.abc import Iterable, Sized

USUAL_COLUMNS = ("text", "prompt")
MAX_COLUMNS = 1000  # for a person to choose from


def check_few(columns: Sized) -> Sized:
    """Return columns that a person can choose from, or raise ValueError."""
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"found {len(columns):,} columns, expected at most {MAX_COLUMNS:,}")
    return columns


def listed(columns: Iterable[str]) -> str:
    """Return names of columns as a message shows them, cut to 120 characters."""
    text = ", ".join(columns) or "none"
    return text if len(text) <= 120 else text[:119] + "…"


def choose_column(columns: list[str], candidates: list[str], column: str | None) -> str:
    """Return the column that holds the prompts, or raise ValueError listing those there are."""
    if column is not None:
        if column not in columns:
            raise ValueError(f"found columns {listed(columns)}, expected one named {column!r}")
        return column
    for usual in USUAL_COLUMNS:
        for name in columns:
            if name.strip().lower() == usual:
                return name
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(f"found columns {listed(columns)}, expected one named text or prompt, or a choice of column")
