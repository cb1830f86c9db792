"""Files shipped in `assets/`: acceptance vectors, hardware profiles, prompts and recorded runs."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.files.extras import has
from sequoia_core.files.model_names import ASSETS, shipped_files
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.prompt_rows import display_prompt
from ui.session import core_cache

if TYPE_CHECKING:
    from sequoia_extras.hardware_models.scenarios import Scenario


def asset_files(kind: str) -> dict[str, Path]:
    """Return the files of "acceptance" or "profiles" by name: the demo pair's defaults first, then other models'."""
    folders = [ASSETS / kind, ASSETS / "scenarios" / kind] if has("hardware_models") else [ASSETS / kind]
    dtype = core_cache.demo_dtype().dtype
    found = (_list_files(folder, folder.stat().st_mtime_ns, dtype) for folder in folders if folder.is_dir())
    return {name: path for files in found for name, path in files.items()}


@lru_cache(maxsize=8)
def _list_files(folder: Path, modified: int, dtype: str) -> dict[str, Path]:
    return shipped_files(folder, dtype)


def vectors() -> dict[str, AcceptanceVector]:
    """Return the shipped acceptance vectors by name, in the order of `asset_files`."""
    return {name: core_cache.load(AcceptanceVector.load, path) for name, path in asset_files("acceptance").items()}


def profiles() -> dict[str, HardwareProfile]:
    """Return the shipped hardware profiles by name, in the order of `asset_files`."""
    return {name: core_cache.load(HardwareProfile.load, path) for name, path in asset_files("profiles").items()}


@lru_cache(maxsize=4)
def scenarios(assets: Path) -> list[Scenario]:
    """Return the pairs and machines to explore before measuring anything; requires the package `hardware_models`."""
    from sequoia_extras.hardware_models.scenarios import list_scenarios

    return list_scenarios(assets)


def scenario_of(hardware: HardwareProfile | None) -> Scenario | None:
    """Return the scenario that a profile belongs to; None if it belongs to none."""
    known = scenarios(ASSETS) if has("hardware_models") else []
    return next((each for each in known if load_scenario(each)[1] is hardware), None)


def load_scenario(scenario: Scenario) -> tuple[AcceptanceVector, HardwareProfile]:
    """Return a scenario's vector and profile."""
    vector = core_cache.load(AcceptanceVector.load, ASSETS / scenario.acceptance)
    return vector, core_cache.load(HardwareProfile.load, ASSETS / scenario.profile)


def runs() -> dict[str, Path]:
    """Return the recorded runs in `assets/runs` by name."""
    return {path.stem: path for path in sorted((ASSETS / "runs").glob("recorded*.jsonl"))}


def sweeps() -> dict[str, Path]:
    """Return the sweep result folders in `assets/sweeps` by name."""
    return {path.parent.name: path.parent for path in sorted((ASSETS / "sweeps").glob("*/rows"))}


def example_tokens() -> dict[str, str]:
    """Return the demo draft's proposals after an example prompt, keyed by rank path such as "1.2"; "" is the root."""
    path = ASSETS / "runs" / "example-tokens.json"
    return json.loads(path.read_text(encoding="utf-8"))["tokens"] if path.is_file() else {}


def prompts() -> list[str]:
    """Return the shipped held-out prompts; empty if there are none."""
    path = ASSETS / "prompts" / "prompts.jsonl"
    return list(map(display_prompt, load_prompts(path))) if path.is_file() else []


def acceptance_origin(vector: AcceptanceVector) -> str:
    """Describe a shipped vector by the pair, data and temperature with which it was measured."""
    meta = vector.meta
    pair = meta.get("pair") or " ← ".join(str(meta[role]) for role in ("target", "draft") if role in meta)
    temperature = f"temperature {meta['temperature']:g}" if "temperature" in meta else None
    return "shipped with the app, measured on " + (
        ", ".join(filter(None, (pair, meta.get("data"), temperature))) or "?"
    )


def profile_origin(profile: HardwareProfile) -> str:
    how = "modelled for" if profile.modelled else "shipped with the app, measured on"
    return f"{how} {profile.device} in {profile.dtype}"
