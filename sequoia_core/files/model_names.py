"""Locations of shipped files, and model names as users type them, as loaded, and as recorded in files."""

import os
from pathlib import Path
from typing import TypeVar

_PACKAGE = Path(__file__).resolve().parents[1]
# The assets are next to the package in a checkout, and inside it in an installation.
ASSETS = next(path for path in (_PACKAGE.parent / "assets", _PACKAGE / "assets") if path.is_dir())
DEMO_PAIR = ASSETS / "demo"
NO_DRAFT = "none"  # draft name that means "no draft"; a folder of this name must be given as ./none
MTP = "mtp"  # draft name that means the target's own MTP layers; a folder of this name must be given as ./mtp
DEFAULT_VECTORS = ("demo-t0", "demo-large-t0", "llama3-70b-8b-cnn")
DEFAULT_PROFILES = {"bfloat16": "cpu-2core-bfloat16", "float32": "cpu-2core"}
Draft = TypeVar("Draft")


def shipped_files(folder: Path, dtype: str) -> dict[str, Path]:
    """Map names to measurement files in a folder of `ASSETS`, with the defaults for `dtype` first."""
    first = (*DEFAULT_VECTORS, DEFAULT_PROFILES.get(dtype))
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    return {name: paths[name] for name in sorted(paths, key=lambda n: first.index(n) if n in first else len(first))}


def model_source(name: str | os.PathLike) -> str:
    """Return the source to load a model from: the absolute path of an existing folder or file, or else the name."""
    try:
        path = Path(name).expanduser()
        return str(path.resolve()) if path.exists() else str(name)
    except (OSError, RuntimeError):  # The name is too long for the system, or the home folder for ~ is unknown.
        return str(name)


def model_folder(name: str | os.PathLike) -> str | None:
    """Return the local folder with a model's files, possibly in the hub cache; None if there is none."""
    source = model_source(name)
    if os.path.isdir(source):
        return source
    from huggingface_hub import try_to_load_from_cache  # a slow import, not needed for local folders

    try:
        cached = try_to_load_from_cache(source, "config.json")
    except (OSError, ValueError):  # The name is not a valid hub id.
        return None
    return os.path.dirname(cached) if isinstance(cached, str) else None


def model_name(name: str | os.PathLike) -> str:
    """Return the name under which a model is recorded: "demo target" or "demo draft", a path, or a hub id."""
    source = model_source(name)
    path = Path(source)
    return f"demo {path.name}" if path.parent == DEMO_PAIR else source


def source_from_name(recorded: str) -> str:
    """Return the source to load a model from, given a name returned by `model_name`."""
    return str(DEMO_PAIR / recorded.removeprefix("demo ")) if recorded.startswith("demo ") else recorded


def require_draft(draft: Draft | None, why: str) -> Draft:
    """Return a draft model or its name; if there is none, raise ValueError with `why`, the reason for needing one."""
    if draft is None or draft == NO_DRAFT:
        raise ValueError(f"draft: found none, expected a draft model: {why}")
    return draft
