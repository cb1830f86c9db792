"""A model's context length according to its files."""

from pathlib import Path

from ..files.model_names import model_folder
from ..files.safe_files import read_bytes, read_json
from .model_sources import claim

CONTEXT_KEYS = ("max_position_embeddings", "n_positions")


def configured_context(name: str) -> int | None:
    """Return a model's maximum number of positions; None if its files do not specify it or are not on this machine."""
    try:
        if (files := claim(name)) is not None:
            return files.context
        folder = model_folder(name)
        config = {} if folder is None else read_json(read_bytes(Path(folder) / "config.json"))
        config = config.get("text_config", config)
        positions = next((config[key] for key in CONTEXT_KEYS if key in config), None)
    except (OSError, ValueError, AttributeError, TypeError):  # loading reports these errors
        return None
    return positions if isinstance(positions, int) else None
