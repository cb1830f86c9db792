"""The file that holds a plain decoder's matrices as compiled passes read them: made once, then streamed.

It is in the cache folder under a name derived from the model's files; a manifest beside it lists its content.

A writer holds the folder's lock, and readers share their copy's lock, so nothing is made twice and only unused copies
are deleted. Where the file system has no locks, nothing is deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...files.safe_files import json_bytes, read_bytes, read_json, write_atomic
from ...native.compile_c import cache_folder
from ...native.llama_x86 import shape_of
from ..model_files import Explained
from .direct_reads import DirectFile, aligned_memory
from .four_bits import FourBits, shared_weights
from .packed_content import PackedParts, packed_content, parts_of
from .tensor_files import PIECE, StoredTensor, TensorFiles

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT, VERSION = "sequoia-packed-layers", 2
SPARE_DISK = 2**28  # bytes left free beside a copy
POLL_SEC = 0.1  # between two checks whether another load is done
Progress = Callable[[float, str], None]


class DamagedCopy(Explained):
    """A packed copy does not hold what was written to it."""


class PackedCopy(DirectFile):
    """A packed copy, open for reading; it is not deleted meanwhile.

    Args:
        sums: the checksum of each part.
    """

    def __init__(self, path: Path, sums: Sequence[int]) -> None:
        super().__init__(path)
        _lock(self._fd, shared=True)
        self._unread = dict(enumerate(sums))

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)  # the open file, which is whole even if another has its name now

    def compare(self, part: int, content: torch.Tensor) -> None:
        """Compare a part with the packed original's checksum, the first time that it is read.

        Raises:
            DamagedCopy: where they differ; the next load checks the whole copy and makes it again.
        """
        if part not in self._unread:
            return
        if self._unread[part] != checksum(content):
            with contextlib.suppress(OSError):  # it cannot be made again either
                os.utime(self._fd, ns=(0, 0))  # with the recorded time it would be trusted again
            raise DamagedCopy(
                f"{self.path}: found a packed copy whose part {part + 1} was damaged, expected it as it was written"
            )
        del self._unread[part]


def checksum(content: torch.Tensor | memoryview) -> int:
    """Return the sum of a part's 64-bit words modulo 2^64, which takes a twentieth of a hash's time and adds up."""
    return int(np.add.reduce(np.asarray(content).view(np.uint64)))


def packed_copy(
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBits],
    *,
    progress: Progress | None = None,
) -> PackedCopy:
    """Return the packed copy of a model, which is made where there is none.

    A copy is trusted if its size and time are those recorded when it was made and read back; with another time its
    content is compared. While another load is making one, this one waits. Copies of earlier versions of the same files
    are deleted, and leftovers of loads that were killed.

    Args:
        stored: where each parameter is stored, by its name.
        progress: called with the fraction done and a message, first the size of the copy. It may raise, to end the
            work.

    Raises:
        ValueError: without room on the disk, for a folder that cannot be written or a disk that loses
            data.
    """
    four_bits = shared_weights(stored) or 0
    parts, folder = parts_of(model, four_bits=four_bits), cache_folder() / "packed-layers"
    source = str(files.files[0].path.resolve())
    facts = [VERSION, bytes(shape_of(model, four_bits=four_bits)), *(file.identity() for file in files.files)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    path, progress = folder / f"{key}.layers", progress or (lambda fraction, message: None)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = _opened(path, parts)
        with _writing(folder, progress if copy is None else None) as alone:
            if alone:
                with contextlib.suppress(OSError):  # a leftover that cannot be deleted does no harm
                    _clean(path, source)
            if copy is None and (copy := _opened(path, parts, compare=True)) is None:
                _drop(path)
                copy = _make(path, source, model, files, stored, parts, progress)
        return copy
    except OSError as error:
        raise ValueError(f"{folder}: cannot keep a packed copy there ({error.strerror}), expected a folder") from error


def _lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file until it is closed -> False where somebody else holds it, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def _writing(folder: Path, progress: Progress | None) -> Iterator[bool]:
    """Hold a folder's lock and yield whether it was free; given a `progress`, wait until it is."""
    try:
        file = folder.with_suffix(".lock").open("ab")  # for writing, as network file systems require for a lock
    except OSError:  # read-only: an existing copy can be used
        yield False
        return
    with file:
        while (alone := _lock(file.fileno())) is False and progress is not None:
            progress(0.0, "waiting for another load, which makes a packed copy")
            time.sleep(POLL_SEC)
        yield bool(alone)


def _opened(path: Path, parts: PackedParts, *, compare: bool = False) -> PackedCopy | None:
    """Return a copy that is whole, by its time or, where that is to be compared, by its content."""
    manifest = _manifest(path)
    sums = manifest.get("sums")
    if manifest.get("version") != VERSION or not isinstance(sums, list):
        return None
    try:
        copy = PackedCopy(path, sums)
    except ValueError:
        return None
    if copy.size == parts.total:
        if manifest.get("time") == copy.stat().st_mtime_ns:
            return copy
        if compare and sums == _sums(copy, parts):
            _write_manifest(path, manifest["source"], copy.stat(), sums)
            return copy
    copy.close()
    return None


def _manifest(path: Path) -> dict:
    try:
        found = read_json(read_bytes(path.with_suffix(".json")))
    except (OSError, ValueError):  # none, or a damaged one: the copy is made again
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def _write_manifest(path: Path, source: str, found: os.stat_result, sums: Sequence[int]) -> None:
    fields = {"source": source, "time": found.st_mtime_ns, "sums": sums}
    write_atomic(path.with_suffix(".json"), json_bytes({"format": FORMAT, "version": VERSION, **fields}))


def _clean(path: Path, source: str) -> None:
    """Delete leftovers of killed writers, and the copies that the one at `path` replaces.

    Those are copies of earlier versions of the same files, by this version or another, and copies without a manifest.
    """
    for left in (*path.parent.glob("tmp*"), *path.parent.glob(".*.tmp")):  # of `tempfile`, of `write_atomic`
        left.unlink(missing_ok=True)
    for other in {found.with_suffix(".layers") for found in path.parent.glob("*.*")} - {path}:
        if _manifest(other).get("source", source) == source:
            _drop(other)


def _drop(path: Path) -> None:
    """Delete a copy and its manifest, unless somebody reads it, or might, where there are no locks."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        if not _lock(file.fileno()):
            return
        path.unlink()
    path.with_suffix(".json").unlink(missing_ok=True)


def _sums(file: DirectFile, parts: PackedParts) -> list[int]:
    """Return the checksums of the content on disk, not in the page cache."""
    memory, sums = aligned_memory(PIECE), []
    for begin, end in pairwise(parts.bounds):
        found = 0
        for offset in range(begin, end, PIECE):
            piece = memory[: min(PIECE, end - offset)]
            file.read(piece, offset, len(piece))
            found += checksum(piece)
        sums.append(found % 2**64)
    return sums


def _make(
    path: Path,
    source: str,
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBits],
    parts: PackedParts,
    progress: Progress,
) -> PackedCopy:
    free = shutil.disk_usage(path.parent).free
    size = f"{parts.total / 1e6:,.0f} MB"
    if free < parts.total + SPARE_DISK:
        raise ValueError(
            f"{path.parent}: found {free / 1e6:,.0f} MB free, expected {size} for a packed copy of the layers and "
            f"{SPARE_DISK / 1e6:,.0f} MB to spare (SEQUOIA_NATIVE=0 streams the model's own files instead)"
        )
    progress(0.0, f"making a packed copy of {size}, once")
    handle, name = tempfile.mkstemp(dir=path.parent)
    fresh, sums, done = Path(name), [0] * (parts.layer_count + 2), 0
    try:
        with os.fdopen(handle, "wb") as file:
            for part, content in packed_content(model, files, stored, parts):
                file.write(content.numpy().data)
                sums[part] = (sums[part] + checksum(content)) % 2**64
                done += len(content)
                progress(0.99 * done / parts.total, f"packing: {done / 1e6:,.0f} of {size}")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.closing(DirectFile(fresh)) as written:
            if _sums(written, parts) != sums:
                raise ValueError(f"{path.parent}: found a disk that returns other bytes than were written to it")
            _write_manifest(path, source, written.stat(), sums)  # before the copy: one without it is not trusted
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    progress(1.0, f"packed copy of {size} made")
    return PackedCopy(path, sums)
