"""Files that several threads read past the page cache, and that are refused once they have changed."""

import contextlib
import errno
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np

LARGE_PAGE = 2**21  # bytes, of x86-64 and most others
ALIGNMENT = 4096  # of memory, offset and length of a direct read: no file system here asks for more
_DIRECT = os.O_DIRECT if sys.platform == "linux" else 0


def round_up(size: int, unit: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def aligned_memory(size: int) -> memoryview:
    """Return zeroed memory of at least `size` bytes that begins at a page, in large pages where the system allows.

    A direct read into small pages is divided into many requests and takes up to 1.7 times as long.
    Only private memory gets large pages. It is not copied into forked processes, since they might keep the pages that
    are being filled. It is freed with its last view.
    """
    if sys.platform != "linux" or size < LARGE_PAGE:
        return memoryview(mmap.mmap(-1, max(round_up(size), ALIGNMENT)))
    size = round_up(size, LARGE_PAGE)
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(advice)
    begin = -np.frombuffer(memory, np.uint8).ctypes.data % LARGE_PAGE
    return memoryview(memory)[begin : begin + size]


class DirectFile:
    """One file, open for reading.

    Attributes:
        size: bytes when it was opened.
        direct: whether reads go past the page cache.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd, self.direct = _open(path)
        except OSError as error:
            raise ValueError(f"{path}: found a file that cannot be opened ({error.strerror}), expected one") from error
        self._closing = weakref.finalize(self, os.close, self._fd)
        self._facts = _facts(os.fstat(self._fd))
        self.size = self._facts["size"]

    def identity(self) -> tuple:
        return str(self.path.resolve()), *self._facts.values()

    def stat(self) -> os.stat_result:
        return os.stat(self.path)

    def check(self) -> None:
        """Refuse a file that is gone or was written to since it was opened."""
        try:
            found = _facts(self.stat())
        except OSError as error:
            raise ValueError(
                f"{self.path}: found no such file any more ({error.strerror}), expected the weights that were there "
                "when the model was loaded"
            ) from error
        for fact, wanted in self._facts.items():
            if found[fact] != wanted:
                raise ValueError(
                    f"{self.path}: found a file that changed ({fact} {found[fact]}), expected it as it was when the "
                    f"model was loaded ({fact} {wanted}); load the model again"
                )

    def read(self, memory: memoryview, offset: int, needed: int) -> None:
        """Read `needed` bytes and more into `memory`, aligned and a multiple of 4,096 bytes as is `offset`."""
        done = 0
        while done < needed:
            try:
                count = os.preadv(self._fd, [memory[done:]], offset + done)
            except OSError as error:
                raise ValueError(
                    f"{self.path}: found a disk that does not deliver byte {offset + done} ({error.strerror}), "
                    "expected to read on"
                ) from error
            reached = done + count
            if reached < needed and self.direct:
                reached -= reached % ALIGNMENT  # a direct read can continue only at a whole block
            if reached <= done:
                self.check()  # cut during the read: the better message is that it changed
                raise ValueError(
                    f"{self.path}: found the end of the file at byte {offset + done + count}, expected "
                    f"{offset + needed} bytes at least"
                )
            done = reached
        if not self.direct and sys.platform == "linux":
            os.posix_fadvise(self._fd, offset, needed, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._closing()


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor, and whether one direct read worked through it."""
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
            except OSError:  # allowed at opening, refused at reading
                os.close(fd)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _facts(stat: os.stat_result) -> dict[str, int]:
    return {"size": stat.st_size, "time": stat.st_mtime_ns, "file": stat.st_ino, "device": stat.st_dev}
