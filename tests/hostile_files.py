"""Files that no reader may take, and what each refusal must be: one line, made without time or memory."""

import io
import os
import resource
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sequoia_core.files.safe_files import MAX_JSON_VALUES

MAX_SEC = 10.0  # of the processor
MAX_KB = 150_000  # beyond the most that the process has held before
MAX_LINE = 400

JUNK = {
    "nothing": b"",
    "binary": b"\x00\x01\x02\x03" * 50,
    "not UTF-8": b'{"prob \xe9": 0.5}',
    "half an object": b'{"format": "sequoia-acceptance", "version": 1',
    "another program's": b'{"format": "other", "version": 1}',
    "too long a number": b'{"x": 1' + b"0" * 5000 + b"}",
    "a key twice": b'{"x": [{"k": 1, "k": 1}]}',
    "half a surrogate pair": rb'{"a": ["\ud800"]}',
    "deep lists": b"[" * 10_000,
    "empty lists without end": b"[" + b"[]," * (MAX_JSON_VALUES + 1) + b"[]]",
}
WRONG = (True, -1, 10**290, 1.5, "x", [], [1], [["x"]], {"a": 1})


def refusal(read: Callable[[bytes, str], Any], data: bytes, name: str, *words: str) -> str:
    """Return the line with which a file is refused; it holds all the words."""
    held, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError) as caught:
        read(data, name)
    assert time.process_time() - started < MAX_SEC
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < MAX_KB
    return checked_line(str(caught.value), name, *words)


def checked_line(message: str, name: str, *words: str) -> str:
    assert message.startswith(f"{name}: ") and message.count(f"{name}: ") == 1, message
    assert "\n" not in message and len(message) < MAX_LINE and "expected" in message, message
    for word in words:
        assert word in message, (word, message)
    message.encode()  # can itself be shown
    return message


def damaged(data: bytes, every: int, flips: tuple[int, ...] = (0xFF,)) -> Iterator[bytes]:
    """Yield a file with one byte changed, at each place in turn."""
    for place in range(0, len(data), every):
        for flip in flips:
            yield data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]


def torch_bytes(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def npy_bytes(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def rewritten_archive(data: bytes, edit: Callable[[str, bytes], bytes]) -> bytes:
    """Return a zip archive with each entry passed through `edit(name, content)`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(name, old.read(name)))
    return stream.getvalue()


def with_pickle(code: bytes) -> bytes:
    """Return a `.pt` file whose pickle is that code."""
    honest = torch_bytes(torch.tensor([0.6, 0.2]))
    return rewritten_archive(honest, lambda name, content: code if name.endswith("data.pkl") else content)


def zip_bomb(compression: int) -> bytes:
    """Return 200 MB in a few KB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name in ("a/data.pkl", "a/data/0"):
            archive.writestr(name, bytes(100_000_000))
    return stream.getvalue()


class Payload:
    """Makes a folder when a pickle of it is run."""

    def __init__(self, marker: str | os.PathLike) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)
