"""Records shown on the *Is it exact?* page: this session's latest for each part of the evidence, or the shipped one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sequoia_core.files.safe_files import json_bytes, read_bytes, read_json
from ui.session import core_cache, shipped
from ui.session.state import state

EVIDENCE_FORMAT = "sequoia-evidence"
EVIDENCE_VERSION = 1
EVIDENCE_PARTS = ("comparison", "losslessness")


def latest_evidence(part: str) -> dict[str, Any] | None:
    """Return this session's latest record of one part of the evidence, or the shipped record; None without either."""
    path = shipped.ASSETS / "runs" / "robustness.json"
    record = state().evidence.get(part)
    if record is None and path.is_file():
        record = core_cache.load(load_evidence, path).get(part)
    return record


def to_json(part: str, record: Mapping[str, Any]) -> bytes:
    """Return one part of the evidence as a file."""
    return json_bytes({"format": EVIDENCE_FORMAT, "version": EVIDENCE_VERSION, part: record})


def load_evidence(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read the parts of the evidence in a file of `to_json`."""
    try:
        content = read_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    found = content.get("format") if isinstance(content, dict) else type(content).__name__
    if found != EVIDENCE_FORMAT or content.get("version") != EVIDENCE_VERSION:
        raise ValueError(f"{path}: found {found!r}, expected format {EVIDENCE_FORMAT!r}, version {EVIDENCE_VERSION}")
    return {part: content[part] for part in EVIDENCE_PARTS if part in content}
