"""A plain decoder's matrices in the tiles of the compiled passes, in a file of their own: made once, then streamed.

The file holds the layers one behind the other, then the head, then the embedding where it is not tied to the head; each
part begins at a whole block, so that it is read straight into the buffer that the passes use. It lies in the cache
folder under a name made of the model's files; a manifest beside it says what it holds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..files.safe_files import json_bytes, read_bytes, read_json, write_atomic
from .compile_c import cache_folder
from .direct_reads import DirectFile, aligned_memory, round_up
from .layer_sources import host_buffer
from .llama_x86 import MATRICES, addresses, compiled, joined, shape_of
from .tensor_files import PIECE, StoredTensor, TensorFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT, VERSION = "sequoia-packed-layers", 1
ROWS = 2**12  # of the head, packed at a time: a multiple of 32
SPARE_DISK = 2**28  # bytes left free beside a copy
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class PackedParts:
    """Where the parts of a packed copy lie, in bytes; each size is a multiple of 4,096.

    Attributes:
        embedding_bytes: 0 where the embedding is tied to the head.
    """

    layer_count: int
    layer_bytes: int
    head_bytes: int
    embedding_bytes: int

    @property
    def head_offset(self) -> int:
        return self.layer_count * self.layer_bytes

    @property
    def total(self) -> int:
        return self.head_offset + self.head_bytes + self.embedding_bytes


def parts_of(model: PreTrainedModel) -> PackedParts:
    """Return how a model's packed copy is divided; its weights need not be there."""
    functions, shape = compiled()[0], shape_of(model)
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    return PackedParts(
        layer_count=shape.layers,
        layer_bytes=round_up(functions.sequoia_layer_bytes(byref(shape))),
        head_bytes=round_up(functions.sequoia_head_bytes(byref(shape))),
        embedding_bytes=0 if tied else round_up(2 * shape.vocab * shape.hidden),
    )


def packed_copy(
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor],
    *,
    progress: Progress | None = None,
) -> DirectFile:
    """Return the packed copy of a model, which is made where there is none.

    A copy is trusted if its size and time are those that were noted when it was made and read back; with another time
    its content is hashed again. Copies of the same files as they were earlier are deleted.

    Args:
        stored: where each parameter lies, by its name.
        progress: called with the fraction done and what is made, its size first.

    Raises:
        ValueError: without room on the disk, for a folder that cannot be written or a disk that does not keep what was
            written.
    """
    parts, folder = parts_of(model), cache_folder() / "packed-layers"
    source = str(files.files[0].path.resolve())
    facts = [VERSION, bytes(shape_of(model)), *(file.identity() for file in files.files)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    path = folder / f"{key}.layers"
    try:
        if not _is_whole(path, parts):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _drop_earlier(folder, source)
            _make(path, source, model, files, stored, parts, progress or (lambda fraction, message: None))
        return DirectFile(path)
    except OSError as error:
        raise ValueError(f"{folder}: cannot keep a packed copy there ({error.strerror}), expected a folder") from error


def _manifest(path: Path) -> dict:
    try:
        found = read_json(read_bytes(path.with_suffix(".json")))
    except (OSError, ValueError):  # none, or a damaged one: the copy is made again
        return {}
    right = isinstance(found, dict) and (found.get("format"), found.get("version")) == (FORMAT, VERSION)
    return found if right else {}


def _is_whole(path: Path, parts: PackedParts) -> bool:
    manifest = _manifest(path)
    try:
        found = path.stat()
    except OSError:
        return False
    if not manifest or found.st_size != parts.total or manifest.get("bytes") != parts.total:
        return False
    if manifest.get("time") == found.st_mtime_ns:
        return True
    if manifest.get("hash") != _hash(path):
        return False
    _write_manifest(path, manifest["source"], manifest["hash"])
    return True


def _write_manifest(path: Path, source: str, digest: str) -> None:
    found = path.stat()
    fields = {"source": source, "bytes": found.st_size, "time": found.st_mtime_ns, "hash": digest}
    write_atomic(path.with_suffix(".json"), json_bytes({"format": FORMAT, "version": VERSION, **fields}))


def _drop_earlier(folder: Path, source: str) -> None:
    for manifest in folder.glob("*.json"):
        if _manifest(manifest).get("source") == source:
            manifest.with_suffix(".layers").unlink(missing_ok=True)
            manifest.unlink(missing_ok=True)


def _hash(path: Path) -> str:
    """Return the hash of what the disk holds, not of what the page cache does."""
    file, digest, memory = DirectFile(path), hashlib.blake2b(), aligned_memory(PIECE)
    try:
        for offset in range(0, file.size, PIECE):
            count = min(PIECE, file.size - offset)
            file.read(memory[: round_up(count)], offset, count)
            digest.update(memory[:count])
    finally:
        file.close()
    return digest.hexdigest()


def _make(
    path: Path,
    source: str,
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor],
    parts: PackedParts,
    progress: Progress,
) -> None:
    free = shutil.disk_usage(path.parent).free
    size = f"{parts.total / 1e6:,.0f} MB"
    if free < parts.total + SPARE_DISK:
        raise ValueError(
            f"{path.parent}: found {free / 1e6:,.0f} MB free, expected {size} for a packed copy of the layers and "
            f"{SPARE_DISK / 1e6:,.0f} MB to spare (SEQUOIA_NATIVE=0 streams the model's own files instead)"
        )
    progress(0.0, f"making a packed copy of {size}, once")
    handle, name = tempfile.mkstemp(dir=path.parent)
    fresh, digest, done = Path(name), hashlib.blake2b(), 0
    try:
        with os.fdopen(handle, "wb") as file:
            for part in _packed_parts(model, files, stored, parts):
                memory = memoryview(part.numpy())
                file.write(memory)
                digest.update(memory)
                done += len(memory)
                progress(0.99 * done / parts.total, f"packing: {done / 1e6:,.0f} of {size}")
            file.flush()
            os.fsync(file.fileno())
        if _hash(fresh) != digest.hexdigest():
            raise ValueError(f"{path.parent}: found a disk that returns other bytes than were written to it")
        fresh.replace(path)
        _write_manifest(path, source, digest.hexdigest())
    finally:
        fresh.unlink(missing_ok=True)
    progress(1.0, f"packed copy of {size} made")


def _packed_parts(
    model: PreTrainedModel, files: TensorFiles, stored: Mapping[str, StoredTensor], parts: PackedParts
) -> Iterator[torch.Tensor]:
    """Yield the file's content from its beginning, uint8, in parts that are valid until the next."""
    functions, shape = compiled()[0], shape_of(model)
    buffer = host_buffer(parts.layer_bytes)
    for index in range(parts.layer_count):
        names = [f"model.layers.{index}.{name}" for name in MATRICES]
        matrices = joined([files.read(stored[name], torch.bfloat16) for name in names])
        functions.sequoia_pack_layer(byref(shape), addresses(matrices), buffer.data_ptr())
        yield buffer
    del buffer
    embedding = stored["model.embed_tokens.weight"]
    yield from _packed_head(stored.get("lm_head.weight", embedding), files, parts.head_bytes)
    if parts.embedding_bytes:
        for start in range(0, shape.vocab, ROWS):
            yield files.read(embedding, torch.bfloat16, slice(start, start + ROWS)).flatten().view(torch.uint8)
        yield torch.zeros(parts.embedding_bytes - 2 * shape.vocab * shape.hidden, dtype=torch.uint8)


def _packed_head(head: StoredTensor, files: TensorFiles, size: int) -> Iterator[torch.Tensor]:
    rows, width = head.shape
    done = 0
    for start in range(0, rows, ROWS):
        block = files.read(head, torch.bfloat16, slice(start, start + ROWS))
        packed = torch.zeros(round_up(len(block), 32) * width, dtype=torch.bfloat16)
        compiled()[0].sequoia_pack_rows(block.data_ptr(), len(block), width, packed.data_ptr())
        yield packed.view(torch.uint8)
        done += 2 * len(packed)
    yield torch.zeros(size - done, dtype=torch.uint8)
