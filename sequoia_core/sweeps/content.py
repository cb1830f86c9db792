"""Content hashes of the files that a pair is loaded from: what tells it from others, wherever it lies."""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from ..files.model_names import DEMO_PAIR, MTP, NO_DRAFT, model_folder, model_source


class PairHashes(NamedTuple):
    """Content hashes of a pair's files: "" for no draft, None where the tokenizer is the target's own."""

    target: str
    draft: str
    tokenizer: str | None


def pair_hashes(target: str | None, draft: str | None, tokenizer: str | None) -> PairHashes:
    """Return the hashes of what `load_pair` reads for these names."""
    target = str(DEMO_PAIR / "target") if target is None else target
    draft = str(DEMO_PAIR / "draft") if draft is None else draft
    try:
        return PairHashes(
            content_hash(files_of(target)),
            "" if draft in (NO_DRAFT, MTP) else content_hash(files_of(draft)),
            None if tokenizer is None else content_hash(files_of(tokenizer)),
        )
    except OSError as error:
        raise ValueError(f"found model files that cannot be read ({error}), expected readable ones") from error


def files_of(model: str) -> str:
    """Return where a model's files are: a folder, the hub's cache or a GGUF file; the name where they are not here."""
    return model_folder(model) or model_source(model)


def content_hash(model: str | os.PathLike) -> str:
    """Return a hash of a model's files, 16 hex digits; of a folder of the hub's cache its commit.

    Files longer than 64 MiB are hashed by their length and 64 pieces of 64 KiB: models have hundreds of gigabytes.
    """
    folder = Path(model)
    # Of the hub's cache: its name is the commit, whatever was downloaded of it so far.
    if folder.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.name):
        return folder.name[:16]
    digest = hashlib.sha256()
    for file in _model_files(folder):
        digest.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as stream:
            if file.stat().st_size <= 64 << 20:
                digest.update(stream.read())
                continue
            for piece in range(64):
                stream.seek(piece * (file.stat().st_size - (64 << 10)) // 63)
                digest.update(stream.read(64 << 10))
    return digest.hexdigest()[:16]


def _model_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    kinds = (".json", ".safetensors", ".model", ".jinja", ".txt")
    return sorted(file for file in path.iterdir() if file.suffix in kinds and file.is_file())
