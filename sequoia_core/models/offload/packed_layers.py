"""The file that holds a plain decoder's matrices as compiled passes read them: made once, then streamed.

It is in the cache folder, under a name derived from the model's files, which it gets once it is whole. Its last blocks
hold the checksum of each part, which is compared when the part is first read.

A writer holds the folder's lock, so nothing is made twice, and deletes copies of no use. A deleted copy is read on by
whoever has it open. Where the file system has no locks, nothing is deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...native.compile_c import cache_folder
from ...native.llama_x86 import shape_of
from ..model_files import Explained
from .direct_reads import DirectFile, aligned_memory
from .four_bits import FourBits, shared_weights
from .packed_content import PackedParts, packed_content, parts_of
from .tensor_files import StoredTensor, TensorFiles

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VERSION = 3
SPARE_DISK = 2**28  # bytes left free beside a copy
POLL_SEC = 0.1  # between two checks whether another load is done
Progress = Callable[[float, str], None]


class DamagedCopy(Explained):
    """A packed copy does not hold what was written to it."""


class PackedCopy(DirectFile):
    """A packed copy, open for reading."""

    def __init__(self, path: Path, parts: PackedParts) -> None:
        super().__init__(path)
        if self.size != parts.file_bytes:
            self.close()
            raise ValueError(f"{path}: found {self.size} bytes, expected {parts.file_bytes}")
        size = parts.file_bytes - parts.total
        memory = aligned_memory(size)
        self.read(memory[:size], parts.total, size)
        self._unread = dict(enumerate(np.frombuffer(memory, np.uint64, parts.layer_count + 2).tolist()))

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)  # the open file, which is whole even if another has its name now

    def compare(self, part: int, content: torch.Tensor) -> None:
        """Compare a part with its checksum, the first time that it is read.

        Raises:
            DamagedCopy: where they differ. The copy is deleted, so that the next load makes it again.
        """
        expected = self._unread.pop(part, None)
        if expected is not None and checksum(content) != expected:
            with contextlib.suppress(OSError):  # then it cannot be made again either
                self.path.unlink()
            raise DamagedCopy(
                f"{self.path}: found a packed copy whose part {part + 1} was damaged, expected it as it was written"
            )


def checksum(content: torch.Tensor) -> int:
    """Return the sum of a part's 64-bit words modulo 2^64, which takes a twentieth of a hash's time and adds up."""
    return int(np.add.reduce(content.numpy().view(np.uint64)))


def packed_copy(
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBits],
    *,
    progress: Progress | None = None,
) -> PackedCopy:
    """Return the packed copy of a model, which is made where there is none.

    While another load is making one, this one waits. Copies of earlier versions of the same files are deleted, and
    leftovers of loads that were killed.

    Args:
        stored: where each parameter is stored, by its name.
        progress: called with the fraction done and a message, first the size of the copy. It may raise, to end the
            work.
    """
    four_bits = shared_weights(stored) or 0
    parts, folder = parts_of(model, four_bits=four_bits), cache_folder() / "packed-layers"
    source = hashlib.sha256(str(files.files[0].path.resolve()).encode()).hexdigest()[:12]
    facts = [VERSION, bytes(shape_of(model, four_bits=four_bits)), *(file.identity() for file in files.files)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    path, progress = folder / f"{source}-{key}.layers", progress or (lambda fraction, message: None)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = _opened(path, parts)
        with _writing(folder, progress if copy is None else None) as alone:
            copy = copy or _opened(path, parts)
            if alone:
                _clean(folder, source, kept=None if copy is None else path)
            return copy or _make(path, model, files, stored, parts, progress)
    except OSError as error:
        raise ValueError(f"{folder}: cannot keep a packed copy there ({error.strerror}), expected a folder") from error


def _lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed -> False where somebody else holds it, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _opened(path: Path, parts: PackedParts) -> PackedCopy | None:
    try:
        return PackedCopy(path, parts)
    except ValueError:  # there is none, or one that was cut
        return None


def _clean(folder: Path, source: str, kept: Path | None) -> None:
    """Delete leftovers of killed writers, copies in other formats, and all of this source but the one that is kept."""
    for path in folder.iterdir():
        if path != kept and (path.name.startswith(f"{source}-") or path.suffix != ".layers" or "-" not in path.name):
            with contextlib.suppress(OSError):  # one that cannot be deleted does no harm
                path.unlink()


def _make(
    path: Path,
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBits],
    parts: PackedParts,
    progress: Progress,
) -> PackedCopy:
    free = shutil.disk_usage(path.parent).free
    size = f"{parts.file_bytes / 1e6:,.0f} MB"
    if free < parts.file_bytes + SPARE_DISK:
        raise ValueError(
            f"{path.parent}: found {free / 1e6:,.0f} MB free, expected {size} for a packed copy of the layers and "
            f"{SPARE_DISK / 1e6:,.0f} MB to spare (SEQUOIA_NATIVE=0 streams the model's own files instead)"
        )
    progress(0.0, f"making a packed copy of {size}, once")
    handle, name = tempfile.mkstemp(dir=path.parent)
    fresh, sums, done = Path(name), [0] * ((parts.file_bytes - parts.total) // 8), 0
    try:
        with os.fdopen(handle, "wb") as file:
            for part, content in packed_content(model, files, stored, parts):
                file.write(content.numpy().data)
                sums[part] = (sums[part] + checksum(content)) % 2**64
                done += len(content)
                progress(0.99 * done / parts.total, f"packing: {done / 1e6:,.0f} of {size}")
            file.write(np.array(sums, np.uint64).data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    progress(1.0, f"packed copy of {size} made")
    return PackedCopy(path, parts)
