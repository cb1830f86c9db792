"""What the evidence page shows of the pair: this session's last measurement of each part, else the shipped one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from sequoia_core.files.safe_files import read_bytes
from ui.session import shipped
from ui.session.state import get, put

FORMAT, VERSION = "sequoia-evidence", 1
PARTS = ("comparison", "losslessness", "assumption")


def job_name(part: str) -> str:
    """Name the job that measures a part."""
    return f"robustness_{part}"


def latest(part: str) -> dict[str, Any] | None:
    """Return what this session found last of a part, else what ships with the app; None without either."""
    path = shipped.ASSETS / "runs" / "robustness.json"
    found = kept(part)
    if found is None and path.is_file():
        found = _recorded(str(path), path.stat().st_mtime_ns).get(part)
    return found


def kept(part: str) -> dict[str, Any] | None:
    """Return what this session found last of a part; None before the first."""
    return get(f"evidence_{part}")


def keep(part: str, record: Mapping[str, Any]) -> None:
    """Store a result; a later failed measurement does not delete it."""
    put(f"evidence_{part}", record)


@st.cache_data(show_spinner=False, max_entries=2)
def _recorded(path: str, modified: int) -> dict[str, dict[str, Any]]:
    return load(path)


def load(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read the parts of a file that `ui.record_files` wrote, or several in one."""
    try:
        held = json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: found no JSON, expected an object of format {FORMAT!r}") from error
    found = held.get("format") if isinstance(held, dict) else type(held).__name__
    if found != FORMAT or held.get("version") != VERSION:
        raise ValueError(f"{path}: found {found!r}, expected format {FORMAT!r}, version {VERSION}")
    return {part: held[part] for part in PARTS if part in held}
