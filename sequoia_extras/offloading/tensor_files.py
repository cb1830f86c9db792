"""Safetensors files, read in pieces without the page cache."""

import json
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sequoia_core.models.default_dtype import STORED_DTYPES

from .direct_reads import ALIGNMENT, DirectFile, aligned_memory, round_up

TENSOR_DTYPES = {stored: getattr(torch, name) for stored, name in STORED_DTYPES.items()}
TENSOR_DTYPES["I32"] = torch.int32  # dtype that 4-bit codes are packed into
PIECE_BYTES = 2**21  # maximum size of a read: efficient for the disk, yet small enough for the processor's cache


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its dtype, shape and byte offset."""

    name: str
    file: DirectFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The number of bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes [begin, end) of a piece, and the index of the tensor element at which they begin."""

    tensor: int
    element: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One read from a file, and the parts of tensors that it contains."""

    file: DirectFile
    offset: int
    needed: int
    copies: tuple[_Copy, ...]


class _Staging(threading.local):
    def __init__(self) -> None:
        self.memory = aligned_memory(PIECE_BYTES)


class TensorFiles:
    """A model's safetensors files, opened for reading."""

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
            if name == "__metadata__" or fields["dtype"] not in TENSOR_DTYPES:
                continue
            dtype = TENSOR_DTYPES[fields["dtype"]]
            offset = 8 + size + fields["data_offsets"][0]
            if offset % dtype.itemsize:
                raise ValueError(
                    f"{file.path}: found {name} at byte {offset}, expected a multiple of {dtype.itemsize} (rewrite the "
                    "file with save_pretrained)"
                )
            self.tensors[name] = StoredTensor(name, file, dtype, tuple(fields["shape"]), offset)

    def check(self) -> None:
        """Raise ValueError if a file has changed since it was opened."""
        for file in self.files:
            file.check()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def read(self, tensor: StoredTensor, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return a tensor, or the given rows of it, on the CPU in the given dtype."""
        if rows is not None:
            row_bytes = tensor.size // tensor.shape[0]
            start, stop, _ = rows.indices(tensor.shape[0])
            shape = (stop - start, *tensor.shape[1:])
            tensor = StoredTensor(tensor.name, tensor.file, tensor.dtype, shape, tensor.offset + start * row_bytes)
        result = torch.empty(tensor.shape, dtype=dtype)
        for piece in plan_reads([tensor]):
            self.read_piece(piece, [tensor], [result.view(-1)])
        return result

    def read_piece(self, piece: Piece, tensors: Sequence[StoredTensor], targets: Sequence[torch.Tensor]) -> int:
        """Read a piece and copy its tensors to flat targets of any dtype; return the number of bytes copied."""
        memory = self._staging.memory
        piece.file.read(memory[: round_up(piece.needed)], piece.offset, piece.needed)
        for copy in piece.copies:
            dtype = tensors[copy.tensor].dtype
            count = (copy.end - copy.begin) // dtype.itemsize
            target = targets[copy.tensor][copy.element : copy.element + count]
            source = torch.frombuffer(memory, dtype=dtype, count=count, offset=copy.begin)
            if dtype == target.dtype and target.device.type == "cpu":  # PyTorch would start extra threads.
                np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
            else:
                target.copy_(source)
        return sum(copy.end - copy.begin for copy in piece.copies)


def plan_reads(tensors: Sequence[StoredTensor]) -> list[Piece]:
    """Return reads of at most 2 MiB each that cover all tensors; adjacent tensors in a file are read together."""
    reads: list[Piece] = []
    run: list[int] = []
    order = [index for index, tensor in enumerate(tensors) if tensor.size]
    for index in sorted(order, key=lambda i: (str(tensors[i].file.path), tensors[i].offset)):
        tensor = tensors[index]
        last = tensors[run[-1]] if run else tensor
        if last.file is not tensor.file or tensor.offset - last.end >= ALIGNMENT:
            reads += _split(tensors, run)
            run = []
        run.append(index)
    return reads + _split(tensors, run)


def _split(tensors: Sequence[StoredTensor], run: Iterable[int]) -> list[Piece]:
    """Divide a run of adjacent tensors, given by their indices, into reads."""
    neighbours = [(index, tensors[index]) for index in run]
    if not neighbours:
        return []
    first = neighbours[0][1]
    stop = max(tensor.end for _, tensor in neighbours)
    reads = []
    for offset in range(first.offset - first.offset % ALIGNMENT, stop, PIECE_BYTES):
        end = min(offset + PIECE_BYTES, stop)
        copies = []
        for index, tensor in neighbours:
            begin = max(offset, tensor.offset)
            until = min(end, tensor.end)
            if begin < until:
                element = (begin - tensor.offset) // tensor.dtype.itemsize
                copies.append(_Copy(index, element, begin - offset, until - offset))
        reads.append(Piece(first.file, offset, end - offset, tuple(copies)))
    return reads
