"""The packed copy of a plain decoder's matrices, laid out for compiled passes: written once, then streamed.

The copy is in the cache folder and gets its final name, which is derived from the model's files, only once it is
complete. Its last blocks contain a checksum of each part, which is verified when the part is first read.

A writer locks the folder, so that no copy is written twice, and deletes obsolete copies. A process that has a deleted
copy open can still read it. If the file system does not support locking, nothing is deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sequoia_core.files.safe_files import cache_folder

from ..cpu_kernels.llama_x86 import llama_shape
from .direct_reads import DirectFile, aligned_memory
from .four_bits import FourBitMatrix, common_group_size
from .packed_content import PackedLayout, packed_content, packed_layout
from .tensor_files import StoredTensor, TensorFiles

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COPY_VERSION = 3
SPARE_DISK = 2**28  # disk space to leave free after writing a copy, in bytes
POLL_SEC = 0.1  # interval between attempts to acquire the lock
Progress = Callable[[float, str], None]


class PackedCopy(DirectFile):
    """A packed copy that is open for reading."""

    def __init__(self, path: Path, layout: PackedLayout) -> None:
        super().__init__(path)
        if self.size != layout.file_bytes:
            self.close()
            raise ValueError(f"{path}: found {self.size} bytes, expected {layout.file_bytes}")
        size = layout.file_bytes - layout.total
        memory = aligned_memory(size)
        self.read(memory[:size], layout.total, size)
        self._unverified = dict(enumerate(np.frombuffer(memory, np.uint64, layout.layer_count + 2).tolist()))

    def stat(self) -> os.stat_result:
        # The open file stays complete even if another file takes its name.
        return os.fstat(self._fd)

    def compare(self, part: int, content: torch.Tensor) -> None:
        """Verify a part's checksum the first time that the part is read.

        Raises:
            ValueError: if the part is damaged. The copy is deleted, so that the next load writes it again.
        """
        expected = self._unverified.pop(part, None)
        if expected is not None and checksum(content) != expected:
            # A copy that cannot be deleted cannot be replaced either.
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise ValueError(
                f"{self.path}: found part {part + 1} of the packed copy damaged, expected it unchanged; the copy was "
                "deleted, so load the model again to rebuild it"
            )


def checksum(content: torch.Tensor) -> int:
    """Return the sum of the content's 64-bit words modulo 2^64; it is additive and 20 times faster than a hash."""
    return int(np.add.reduce(content.numpy().view(np.uint64)))


def packed_copy(
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBitMatrix],
    *,
    progress: Progress | None = None,
) -> PackedCopy:
    """Return a model's packed copy, writing it first if it does not exist.

    Waits while another load is writing a copy. Deletes copies of earlier versions of the same files and the leftovers
    of loads that were killed.

    Args:
        stored: stored tensors by parameter name.
        progress: called with the fraction done and a message; the first message contains the size of the copy. It may
            raise an exception to cancel.
    """
    four_bits = common_group_size(stored) or 0
    layout = packed_layout(model, four_bits=four_bits)
    folder = cache_folder() / "packed-layers"
    source = hashlib.sha256(str(files.files[0].path.resolve()).encode()).hexdigest()[:12]
    facts = [COPY_VERSION, bytes(llama_shape(model, four_bits=four_bits)), *(file.identity() for file in files.files)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    path = folder / f"{source}-{key}.layers"
    progress = progress or (lambda fraction, message: None)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = _open_copy(path, layout)
        with _folder_lock(folder, progress if copy is None else None) as locked:
            copy = copy or _open_copy(path, layout)
            if locked:
                _delete_obsolete(folder, source, keep=None if copy is None else path)
            return copy or _write_copy(path, packed_content(model, files, stored, layout), layout, progress)
    except OSError as error:
        raise ValueError(f"{folder}: cannot store a packed copy there ({error.strerror})") from error


def _try_lock(descriptor: int) -> bool | None:
    """Lock a file until it is closed; return False if another process holds the lock, None if locks are unsupported."""
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
def _folder_lock(folder: Path, progress: Progress | None) -> Iterator[bool]:
    """Yield whether the folder was locked; wait for the lock only if `progress` is given."""
    try:
        # Network file systems lock only files that are open for writing.
        file = folder.with_suffix(".lock").open("ab")
    # An existing copy in a read-only folder is still usable.
    except OSError:
        yield False
        return
    with file:
        while (locked := _try_lock(file.fileno())) is False and progress is not None:
            progress(0.0, "waiting for another load to write a packed copy")
            time.sleep(POLL_SEC)
        yield bool(locked)


def _open_copy(path: Path, layout: PackedLayout) -> PackedCopy | None:
    """Return the copy, or None if it does not exist or was truncated."""
    try:
        return PackedCopy(path, layout)
    except ValueError:
        return None


def _delete_obsolete(folder: Path, source: str, keep: Path | None) -> None:
    """Delete leftovers of killed writers, copies in other formats, and all copies of this source except `keep`."""
    for path in folder.iterdir():
        if path != keep and (path.name.startswith(f"{source}-") or path.suffix != ".layers" or "-" not in path.name):
            # A leftover file does no harm.
            with contextlib.suppress(OSError):
                path.unlink()


def _write_copy(
    path: Path, content: Iterable[tuple[int, torch.Tensor]], layout: PackedLayout, progress: Progress
) -> PackedCopy:
    free = shutil.disk_usage(path.parent).free
    size = f"{layout.file_bytes / 1e6:,.0f} MB"
    if free < layout.file_bytes + SPARE_DISK:
        raise ValueError(
            f"{path.parent}: found {free / 1e6:,.0f} MB free, expected {size} for a packed copy of the layers plus "
            f"{SPARE_DISK / 1e6:,.0f} MB to spare (set SEQUOIA_NATIVE=0 to stream the model's own files instead)"
        )
    progress(0.0, f"writing a packed copy of {size} (only once)")
    handle, name = tempfile.mkstemp(dir=path.parent)
    unfinished = Path(name)
    sums = [0] * ((layout.file_bytes - layout.total) // 8)
    written = 0
    try:
        with os.fdopen(handle, "wb") as file:
            for part, block in content:
                file.write(block.numpy().data)
                sums[part] = (sums[part] + checksum(block)) % 2**64
                written += len(block)
                progress(0.99 * written / layout.total, f"packing: {written / 1e6:,.0f} of {size}")
            file.write(np.array(sums, np.uint64).data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    progress(1.0, f"packed copy of {size} written")
    return PackedCopy(path, layout)
