"""Where the shipped files are, and a model's name from what the user typed."""

import os
from pathlib import Path
from typing import TypeVar

from .gguf_header import is_gguf

_PACKAGE = Path(__file__).resolve().parents[1]
# Beside the package in a checkout, inside it where it is installed.
ASSETS = next(path for path in (_PACKAGE.parent / "assets", _PACKAGE / "assets") if path.is_dir())
DEMO_PAIR = ASSETS / "demo"
NO_DRAFT = "none"  # in place of a draft's name: the target alone; a folder of that name is ./none
MTP = "mtp"  # likewise: the layers in the target's own files; a folder of that name is ./mtp
DEFAULT_VECTORS = ("demo-t0", "demo-large-t0", "llama3-70b-8b-cnn")
DEFAULT_PROFILES = {"bfloat16": "cpu-2core-bfloat16", "float32": "cpu-2core"}
Draft = TypeVar("Draft")


def shipped_files(folder: Path, dtype: str) -> dict[str, Path]:
    """Return the measurements in a folder of `ASSETS` by name, the default ones first, for models in that dtype."""
    first = (*DEFAULT_VECTORS, DEFAULT_PROFILES.get(dtype))
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    return {name: paths[name] for name in sorted(paths, key=lambda n: first.index(n) if n in first else len(first))}


def model_source(name: str | os.PathLike) -> str:
    """Return where to load a model from: the absolute path of a local folder or GGUF file, or the hub id as given."""
    try:
        path = Path(name).expanduser()
        return str(path.resolve()) if path.is_dir() or (is_gguf(name) and path.is_file()) else str(name)
    except (OSError, RuntimeError):  # a name too long for the system, or ~ of a user who has no home
        return str(name)


def model_folder(name: str | os.PathLike) -> str | None:
    """Return where a model's files are on this machine, a local folder or the hub's cache; None without any."""
    source = model_source(name)
    if os.path.isdir(source):
        return source
    from huggingface_hub import try_to_load_from_cache  # heavy, and local folders do not need it

    try:
        cached = try_to_load_from_cache(source, "config.json")
    except (OSError, ValueError):  # a name that cannot be a hub id
        return None
    return os.path.dirname(cached) if isinstance(cached, str) else None


def model_name(name: str | os.PathLike) -> str:
    """Return the recorded name of a model: "demo target" and "demo draft", a folder's path, or a hub id."""
    source = model_source(name)
    path = Path(source)
    return f"demo {path.name}" if path.parent == DEMO_PAIR else source


def named_source(recorded: str) -> str:
    """Return where to load a model from that `model_name` recorded."""
    return str(DEMO_PAIR / recorded.removeprefix("demo ")) if recorded.startswith("demo ") else recorded


def needed_draft(draft: Draft | None, why: str) -> Draft:
    """Return a draft, by model or by name; `why` it is needed, such as "measuring acceptance compares two models"."""
    if draft is None or draft == NO_DRAFT:
        raise ValueError(f"draft: found none, expected a draft model: {why}")
    return draft
