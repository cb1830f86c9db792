"""The number formats that a pair was timed in on this machine, kept between runs. Loads no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.model_names import DEMO_PAIR, model_source
from ..files.safe_files import json_bytes, read_bytes, read_json, write_atomic
from . import instruction_sets
from .compile_c import cache_folder, can_compile
from .device import processor_name

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT, VERSION, MAX_KEPT = "sequoia-number-formats", 1, 200


@dataclass(frozen=True, slots=True)
class FormatTimes:
    """What one number format costs and yields.

    Attributes:
        dtype: "float32" or "bfloat16".
        one_sec, sixteen_sec: seconds of a target pass over 1 and 16 tokens.
        draft_sec: seconds of a draft pass over one token.
        tokens_per_sec: predicted, with the best tree of at most 16 nodes.
        passes_by: what runs the target's passes.
    """

    dtype: str
    one_sec: float
    sixteen_sec: float
    draft_sec: float
    tokens_per_sec: float
    passes_by: str


def record_path() -> Path:
    """The file that keeps the times measured on this machine."""
    return cache_folder() / "number-formats.json"


def kept_times(target: str | None, draft: str | None, path: Path | None = None) -> tuple[FormatTimes, ...]:
    """Return what was measured before for a pair on this machine, the fastest format first; empty when nothing was.

    Args:
        target, draft: as for `load_pair`; None twice is the demo pair.
    """
    rows = _read(path or record_path()).get(_key(target, draft))
    if rows is None:
        return ()
    try:
        return _rows().validate_python(rows)
    except ValueError:  # written by another version
        return ()


@cache
def _rows() -> TypeAdapter[tuple[FormatTimes, ...]]:
    from pydantic import TypeAdapter

    return TypeAdapter(tuple[FormatTimes, ...])


def keep_times(target: str | None, draft: str | None, times: Sequence[FormatTimes], path: Path | None = None) -> None:
    """Keep what was measured for a pair; of many pairs the latest are kept.

    Raises:
        OSError, ValueError: when the file cannot be written.
    """
    path = path or record_path()
    pairs = _read(path)
    pairs.pop(_key(target, draft), None)
    pairs[_key(target, draft)] = [asdict(row) for row in times]
    latest = dict(list(pairs.items())[-MAX_KEPT:])
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(path, json_bytes({"format": FORMAT, "version": VERSION, "pairs": latest}))


def _read(path: Path) -> dict[str, Any]:
    """Return the pairs of the file; nothing for one that is not there or not ours, which only costs measuring again."""
    try:
        found = read_json(read_bytes(path))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        return {}
    pairs = found.get("pairs")
    return pairs if isinstance(pairs, dict) else {}


def _key(target: str | None, draft: str | None) -> str:
    """Return a hash of everything the times depend on: the processor, what computes on it, and both models' files."""
    instructions = instruction_sets.chosen()[0]
    facts = [processor_name(), str(os.cpu_count()), *_versions(), str(can_compile())]
    facts.append("" if instructions is None else instructions.name)
    for name, shipped in ((target, "target"), (draft, "draft")):
        facts.append(_identity(model_source(name or DEMO_PAIR / shipped)))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    return version("torch"), version("transformers")


def _identity(source: str) -> str:
    folder, facts = Path(source), [source]
    is_folder = os.path.isdir(source)  # False for names that are too long for a path, too
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"] if is_folder else []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        facts.append(f"{file.name} {found.st_size} {found.st_mtime_ns}")
    return " ".join(facts)
