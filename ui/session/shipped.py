"""What ships with the app in `assets/`: acceptance vectors, hardware profiles, prompts, recorded runs."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core.files.model_names import ASSETS, shipped_files
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.prompt_rows import shown
from ui.session import core_cache

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile


def files(kind: str) -> dict[str, Path]:
    """Return the files of `assets/<kind>` ("acceptance" or "profiles") by name, the defaults of the demo pair first."""
    folder = ASSETS / kind
    return _files(folder, folder.stat().st_mtime_ns if folder.is_dir() else 0, core_cache.demo_dtype())


@lru_cache(maxsize=8)
def _files(folder: Path, modified: int, dtype: str) -> dict[str, Path]:
    return shipped_files(folder, dtype)


def acceptance(name: str) -> AcceptanceVector:
    path = files("acceptance")[name]
    return core_cache.load_acceptance(str(path), path.stat().st_mtime_ns)


def profile(name: str) -> HardwareProfile:
    path = files("profiles")[name]
    return core_cache.load_profile(str(path), path.stat().st_mtime_ns)


def runs() -> dict[str, Path]:
    """Return the recorded runs in `assets/runs` by name."""
    return {path.stem: path for path in sorted((ASSETS / "runs").glob("recorded*.jsonl"))}


def sweeps() -> dict[str, Path]:
    """Return the sweeps in `assets/sweeps`, each a folder of results, by name."""
    return {path.parent.name: path.parent for path in sorted((ASSETS / "sweeps").glob("*/rows"))}


def example_tokens() -> dict[str, str]:
    """Return what the demo draft proposes after an example prompt by its path of ranks, "1.2"; "" is the root."""
    path = ASSETS / "runs" / "example-tokens.json"
    return json.loads(path.read_text(encoding="utf-8"))["tokens"] if path.is_file() else {}


def prompts() -> list[str]:
    """Return the shipped held-out prompts; empty when there are none."""
    path = ASSETS / "prompts" / "prompts.jsonl"
    return list(map(shown, load_prompts(path))) if path.is_file() else []


def acceptance_origin(vector: AcceptanceVector) -> str:
    """Say that a vector is a default, and what it was measured on."""
    meta = vector.meta
    pair = meta.get("pair") or " ← ".join(str(meta[role]) for role in ("target", "draft") if role in meta)
    temperature = f"temperature {meta['temperature']:g}" if "temperature" in meta else None
    return "shipped with the app, measured on " + (
        ", ".join(filter(None, (pair, meta.get("data"), temperature))) or "?"
    )


def profile_origin(profile: HardwareProfile) -> str:
    return f"shipped with the app, measured on {profile.device} in {profile.dtype}"
