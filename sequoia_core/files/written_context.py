"""How long a model's context is, by its files."""

from pathlib import Path

from .gguf_header import is_gguf, read_gguf_header
from .model_names import model_folder, model_source
from .safe_files import read_bytes, read_json

KEYS = ("max_position_embeddings", "n_positions")


def written_context(name: str) -> int | None:
    """Return a model's positions; None where its files do not say, or are not on this machine."""
    try:
        if is_gguf(name):
            positions = read_gguf_header(model_source(name)).of_model("context_length")
        else:
            folder = model_folder(name)
            config = {} if folder is None else read_json(read_bytes(Path(folder) / "config.json"))
            config = config.get("text_config", config)
            positions = next((config[key] for key in KEYS if key in config), None)
    except (OSError, ValueError, AttributeError, TypeError):  # loading reports the fault
        return None
    return positions if isinstance(positions, int) else None
