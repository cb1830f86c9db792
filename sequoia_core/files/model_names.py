"""What a model is called in files and on pages, from what the user typed; nothing is loaded here."""

from __future__ import annotations

import os
from pathlib import Path

DEMO_PAIR = Path(__file__).resolve().parents[2] / "assets" / "demo"


def model_source(name: str | os.PathLike) -> str:
    """Return where to load a model from: the absolute path of a local folder, or the hub id as it was given.

    A leading `~` and relative paths are resolved, so that two spellings of one folder are one model.
    """
    try:
        path = Path(name).expanduser()
        return str(path.resolve()) if path.is_dir() else str(name)
    except (OSError, RuntimeError):  # a name too long for the system, or ~ of a user who has no home
        return str(name)


def model_name(name: str | os.PathLike) -> str:
    """Return what measurements record as the model: "demo target" and "demo draft", a folder's path, or a hub id."""
    source = model_source(name)
    path = Path(source)
    return f"demo {path.name}" if path.parent == DEMO_PAIR else source


def pair_names(target: str | os.PathLike | None, draft: str | os.PathLike | None) -> tuple[str, str]:
    """Return the names of a pair as `load_pair` would call its models; None twice is the demo pair."""
    return model_name(target or DEMO_PAIR / "target"), model_name(draft or DEMO_PAIR / "draft")
