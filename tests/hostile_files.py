"""Hostile files, and checks that they are refused quickly and in one line."""

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

MAX_SEC = 10.0  # of CPU time
MAX_KB = 150_000  # above the previous peak memory of the process
MAX_LINE = 400

JUNK = {
    "nothing": b"",
    "binary": b"\x00\x01\x02\x03" * 50,
    "not UTF-8": b'{"prob \xe9": 0.5}',
    "half an object": b'{"format": "sequoia-acceptance", "version": 1',
    "another program's": b'{"format": "other", "version": 1}',
    "too long a number": b'{"x": 1' + b"0" * 5000 + b"}",
    "a key twice": b'{"x": [{"k": 1, "k": 1}]}',
    "deep lists": b"[" * 10_000,
    "empty lists without end": b"[" + b"[]," * (MAX_JSON_VALUES + 1) + b"[]]",
}
WRONG = (True, -1, 10**290, 1.5, "x", [], [1], [["x"]], {"a": 1})


def refusal(read: Callable[[bytes, str], Any], data: bytes, name: str, *words: str) -> str:
    """Return the error line for a file after checking that it contains the words."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
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
    message.encode()  # can be displayed
    return message


def damaged(data: bytes, every: int, flips: tuple[int, ...] = (0xFF,)) -> Iterator[bytes]:
    """Yield copies of a file, each with one changed byte."""
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
    """Return a `.pt` file with the given pickle."""
    honest = torch_bytes(torch.tensor([0.6, 0.2]))
    return rewritten_archive(honest, lambda name, content: code if name.endswith("data.pkl") else content)


def zip_bomb(compression: int) -> bytes:
    """Return an archive of a few KB that unpacks to 200 MB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name in ("a/data.pkl", "a/data/0"):
            archive.writestr(name, bytes(100_000_000))
    return stream.getvalue()


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: str | os.PathLike) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)
