"""Content hashes of a pair's files, which identify its models wherever they are stored."""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from sequoia_core.files.model_names import DEMO_PAIR, MTP, NO_DRAFT, model_folder, model_source

MODEL_FILE_SUFFIXES = (".json", ".safetensors", ".model", ".jinja", ".txt")
WHOLE_FILE_BYTES = 64 << 20
SAMPLED_CHUNKS = 64
CHUNK_BYTES = 64 << 10


class PairHashes(NamedTuple):
    """Content hashes of a pair's files: "" if there is no draft, None if the tokenizer is the target's."""

    target: str
    draft: str
    tokenizer: str | None


def pair_hashes(target: str | None, draft: str | None, tokenizer: str | None) -> PairHashes:
    """Return the hashes of the files that `load_pair` reads for these names."""
    target = str(DEMO_PAIR / "target") if target is None else target
    draft = str(DEMO_PAIR / "draft") if draft is None else draft
    try:
        return PairHashes(
            content_hash(locate_files(target)),
            "" if draft in (NO_DRAFT, MTP) else content_hash(locate_files(draft)),
            None if tokenizer is None else content_hash(locate_files(tokenizer)),
        )
    except OSError as error:
        raise ValueError(f"cannot read the model files ({error})") from error


def locate_files(model: str) -> str:
    """Return the path of a model's files (a folder, a hub snapshot or a GGUF file), or its name if not found."""
    return model_folder(model) or model_source(model)


def content_hash(model: str | os.PathLike) -> str:
    """Return 16 hex digits that identify a model's files; for a folder in the hub cache, those of its commit.

    Models can take hundreds of gigabytes, so only the length and 64 chunks of 64 KiB are hashed for files over 64 MiB.
    """
    path = Path(model)
    # A hub snapshot is named after its commit, however much of it has been downloaded.
    if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name):
        return path.name[:16]
    digest = hashlib.sha256()
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.suffix in MODEL_FILE_SUFFIXES]
    for file in sorted(each for each in files if each.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            if size <= WHOLE_FILE_BYTES:
                digest.update(stream.read())
                continue
            for chunk in range(SAMPLED_CHUNKS):
                stream.seek(chunk * (size - CHUNK_BYTES) // (SAMPLED_CHUNKS - 1))
                digest.update(stream.read(CHUNK_BYTES))
    return digest.hexdigest()[:16]
