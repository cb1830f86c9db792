"""Where a model's tensors are in its safetensors files, and reading them without the page cache, in pieces."""

import json
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..default_dtype import NAMES
from .direct_reads import ALIGNMENT, DirectFile, aligned_memory, round_up

STORED = {spelt: getattr(torch, name) for spelt, name in NAMES.items()} | {"I32": torch.int32}  # numbers packed into it
PIECE = 2**21  # bytes of one read: enough for the disk, and small enough for the processor's cache


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: its dtype and shape, and where its bytes are."""

    name: str
    file: DirectFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes [begin, end) of a piece that was read, and the entry of a tensor that they begin at."""

    tensor: int
    entry: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One read of a file and the parts of tensors that it holds."""

    file: DirectFile
    offset: int
    needed: int
    copies: tuple[_Copy, ...]


class _Staging(threading.local):
    def __init__(self) -> None:
        self.memory = aligned_memory(PIECE)


class TensorFiles:
    """A model's safetensors files, open for reading."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files: list[DirectFile] = []
        self.tensors: dict[str, StoredTensor] = {}
        self._staging = _Staging()
        try:
            for path in paths:
                self.files.append(DirectFile(path))
                self._read_header(self.files[-1])
        except ValueError:
            self.close()
            raise

    def _read_header(self, file: DirectFile) -> None:
        with file.path.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(size))
        for name, fields in header.items():
            if name == "__metadata__" or fields["dtype"] not in STORED:
                continue
            dtype, offset = STORED[fields["dtype"]], 8 + size + fields["data_offsets"][0]
            if offset % dtype.itemsize:
                raise ValueError(
                    f"{file.path}: found {name} at byte {offset}, expected a multiple of {dtype.itemsize} (write the "
                    "file again with save_pretrained)"
                )
            self.tensors[name] = StoredTensor(name, file, dtype, tuple(fields["shape"]), offset)

    def check(self) -> None:
        """Refuse a file that has changed since it was opened."""
        for file in self.files:
            file.check()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def read(self, tensor: StoredTensor, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return a tensor, or some of its rows, on the CPU in a dtype."""
        if rows is not None:
            row = tensor.size // tensor.shape[0]
            start, stop, _ = rows.indices(tensor.shape[0])
            shape = (stop - start, *tensor.shape[1:])
            tensor = StoredTensor(tensor.name, tensor.file, tensor.dtype, shape, tensor.offset + start * row)
        result = torch.empty(tensor.shape, dtype=dtype)
        for piece in pieces([tensor]):
            self.read_piece(piece, [tensor], [result.view(-1)])
        return result

    def read_piece(self, piece: Piece, tensors: Sequence[StoredTensor], targets: Sequence[torch.Tensor]) -> int:
        """Read a piece and copy what it holds, converted, to flat tensors in any dtype; return bytes copied."""
        memory = self._staging.memory
        piece.file.read(memory[: round_up(piece.needed)], piece.offset, piece.needed)
        for copy in piece.copies:
            stored, target = tensors[copy.tensor].dtype, targets[copy.tensor]
            to = target[copy.entry : copy.entry + (copy.end - copy.begin) // stored.itemsize]
            held = torch.frombuffer(memory, dtype=stored, count=len(to), offset=copy.begin)
            if stored == to.dtype and to.device.type == "cpu":  # PyTorch would start threads in each reader
                np.copyto(to.view(torch.uint8).numpy(), held.view(torch.uint8).numpy())
            else:
                to.copy_(held)
        return sum(copy.end - copy.begin for copy in piece.copies)


def pieces(tensors: Sequence[StoredTensor]) -> list[Piece]:
    """Return the reads that bring all the tensors: neighbours in a file together, at most 2 MiB each."""
    reads: list[Piece] = []
    order = sorted((i for i in range(len(tensors)) if tensors[i].size), key=lambda i: _place(tensors[i]))
    run: list[int] = []
    for index in order:
        last = tensors[run[-1]] if run else None
        here = tensors[index]
        if last is not None and (last.file is not here.file or here.offset - last.offset - last.size >= ALIGNMENT):
            reads += _cut(tensors, run)
            run = []
        run.append(index)
    return reads + (_cut(tensors, run) if run else [])


def _place(tensor: StoredTensor) -> tuple[str, int]:
    return str(tensor.file.path), tensor.offset


def _cut(tensors: Sequence[StoredTensor], run: Iterable[int]) -> list[Piece]:
    run = list(run)
    file, start = tensors[run[0]].file, tensors[run[0]].offset
    stop = max(tensors[i].offset + tensors[i].size for i in run)
    reads = []
    for offset in range(start - start % ALIGNMENT, stop, PIECE):
        end = min(offset + PIECE, stop)
        copies = []
        for index in run:
            held = tensors[index]
            begin, until = max(offset, held.offset), min(end, held.offset + held.size)
            if begin < until:
                entry = (begin - held.offset) // held.dtype.itemsize
                copies.append(_Copy(index, entry, begin - offset, until - offset))
        reads.append(Piece(file, offset, end - offset, tuple(copies)))
    return reads
