"""Files that several threads read without the page cache, and that are rejected once they have changed."""

import contextlib
import errno
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np

LARGE_PAGE = 2**21  # size in bytes on x86-64 and most other processors
# Common file systems require a direct read's address, offset and length to be multiples of this or less.
ALIGNMENT = 4096
_DIRECT = os.O_DIRECT if sys.platform == "linux" else 0


def round_up(size: int, unit: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def aligned_memory(size: int) -> memoryview:
    """Return zeroed, page-aligned memory of at least `size` bytes, in huge pages where the system allows.

    The kernel splits a direct read into memory with small pages into many requests, which takes up to 1.7 times as
    long. Only private mappings get huge pages. Forked processes do not inherit the memory, because copy-on-write could
    leave them, not this process, with the pages that are being filled. The memory is freed with its last view.
    """
    if sys.platform != "linux" or size < LARGE_PAGE:
        return memoryview(mmap.mmap(-1, max(round_up(size), ALIGNMENT)))
    size = round_up(size, LARGE_PAGE)
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
        with contextlib.suppress(OSError):  # The kernel may not support huge pages.
            memory.madvise(advice)
    begin = -np.frombuffer(memory, np.uint8).ctypes.data % LARGE_PAGE
    return memoryview(memory)[begin : begin + size]


class DirectFile:
    """A file that is open for reading.

    Attributes:
        size: the size in bytes when the file was opened.
        direct: whether reads bypass the page cache.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd, self.direct = _open(path)
        except OSError as error:
            raise ValueError(f"{path}: cannot be opened ({error.strerror}), expected a readable file") from error
        self._close = weakref.finalize(self, os.close, self._fd)
        self._identity = _identity(os.fstat(self._fd))
        self.size = self._identity[0]

    def identity(self) -> tuple:
        """Return a tuple that identifies this version of the file."""
        return str(self.path.resolve()), *self._identity

    def stat(self) -> os.stat_result:
        return os.stat(self.path)

    def check(self) -> None:
        """Raise ValueError if the file was deleted or modified since it was opened."""
        try:
            found = _identity(self.stat())
        except OSError as error:
            raise ValueError(
                f"{self.path}: the weights file no longer exists ({error.strerror}), expected it to stay in place"
            ) from error
        if found != self._identity:
            raise ValueError(
                f"{self.path}: the file has changed since the model was loaded, expected it unchanged; load the model "
                "again"
            )

    def read(self, memory: memoryview, offset: int, needed: int) -> None:
        """Read at least `needed` bytes into `memory`; its address, length and `offset` must be multiples of 4,096."""
        done = 0
        while done < needed:
            try:
                count = os.preadv(self._fd, [memory[done:]], offset + done)
            except OSError as error:
                raise ValueError(
                    f"{self.path}: cannot read at byte {offset + done} ({error.strerror}), expected a readable file"
                ) from error
            reached = done + count
            if reached < needed and self.direct:
                # A direct read can resume only at a block boundary.
                reached -= reached % ALIGNMENT
            if reached <= done:
                # This raises a clearer error if the file was truncated.
                self.check()
                raise ValueError(
                    f"{self.path}: found the end of the file at byte {offset + done + count}, expected at least "
                    f"{offset + needed} bytes"
                )
            done = reached
        if not self.direct and sys.platform == "linux":
            os.posix_fadvise(self._fd, offset, needed, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._close()


def _open(path: Path) -> tuple[int, bool]:
    """Return a file descriptor and whether it supports direct reads, which is verified by a test read."""
    if _DIRECT:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            try:
                os.preadv(fd, [aligned_memory(ALIGNMENT)], 0)
                return fd, True
            # Some file systems accept the flag but reject the read.
            except OSError:
                os.close(fd)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _identity(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev
