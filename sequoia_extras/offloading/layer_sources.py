"""The sources that layers stream from: the model's own files, a packed file, or pinned host memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .direct_reads import ALIGNMENT, DirectFile, aligned_memory, round_up
from .tensor_files import PIECE_BYTES, StoredTensor, TensorFiles, plan_reads

# Every matrix has this alignment: with others, products may differ in the last bit.
CACHE_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """A matrix's dtype, shape, and byte range [begin, end) in a layer's buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def flat_view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the matrix as a one-dimensional view of a buffer."""
        return buffer[self.begin : self.end].view(self.dtype)


def layout_matrices(matrices: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> tuple[MatrixLayout, ...]:
    """Lay out matrices of these dtypes and shapes one after the other in a buffer."""
    layouts = []
    begin = 0
    for dtype, shape in matrices:
        end = begin + math.prod(shape) * dtype.itemsize
        layouts.append(MatrixLayout(dtype, shape, begin, end))
        begin = round_up(end, CACHE_LINE_BYTES)
    return tuple(layouts)


def host_buffer(size: int) -> torch.Tensor:
    """Return aligned CPU memory, uint8 [size]."""
    return torch.frombuffer(aligned_memory(size), dtype=torch.uint8, count=size)


class LayerSource:
    """A source of `layer_count` layers, each of which fits into a buffer of `layer_bytes`."""

    layer_count: int
    layer_bytes: int
    device: torch.device

    def allocate(self) -> torch.Tensor:
        """Return device memory for one layer, uint8 [at least layer_bytes], aligned to 64 bytes."""
        if self.device.type == "cpu":
            return host_buffer(self.layer_bytes)
        # Reader threads could not write to an inference tensor.
        with torch.inference_mode(False):
            return torch.empty(self.layer_bytes, dtype=torch.uint8, device=self.device)

    def part_count(self, layer: int) -> int:
        """Return the number of parts that a layer is read in."""
        raise NotImplementedError

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        """Read one part of a layer into a buffer and return the number of bytes read. Called from several threads."""
        raise NotImplementedError

    def await_read(self, buffer: torch.Tensor) -> None:
        """Make the device wait until the data read into a buffer has arrived."""

    def release(self, buffer: torch.Tensor) -> None:
        """Delay later reads into a buffer until the kernels that use it have finished."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def device_wait_sec(self) -> float:
        """Return the seconds that the device has spent waiting for reads."""
        return 0.0

    def check(self) -> None:
        """Raise ValueError if the source has changed since it was opened."""

    def close(self) -> None:
        """Close files and free memory. Called after the last read."""


class TensorSource(LayerSource):
    """Layers read from the model's own files and converted to the dtypes of their layout.

    `stored` lists each layer's matrices in the files, and `layouts` their layouts in the same order. Closing the source
    leaves the files open, because the resident weights are read from them too.
    """

    def __init__(
        self,
        files: TensorFiles,
        stored: Sequence[Sequence[StoredTensor]],
        layouts: Sequence[Sequence[MatrixLayout]],
        device: torch.device,
    ) -> None:
        self.files = files
        self.stored = stored
        self.layouts = layouts
        self.device = device
        self.layer_count = len(stored)
        self.layer_bytes = max(layer[-1].end for layer in layouts)
        self._pieces = [plan_reads(layer) for layer in stored]

    def part_count(self, layer: int) -> int:
        return len(self._pieces[layer])

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        targets = [layout.flat_view(buffer) for layout in self.layouts[layer]]
        return self.files.read_piece(self._pieces[layer][part], self.stored[layer], targets)

    def check(self) -> None:
        self.files.check()


class PackedSource(LayerSource):
    """Layers read directly from one file into the buffers; all have the same size, a multiple of 4,096 bytes."""

    device = torch.device("cpu")

    def __init__(self, file: DirectFile, layer_count: int, layer_bytes: int) -> None:
        assert layer_bytes % ALIGNMENT == 0, "direct reads begin and end at block boundaries"
        self.file = file
        self.layer_count = layer_count
        self.layer_bytes = layer_bytes

    def part_count(self, layer: int) -> int:
        return -(-self.layer_bytes // PIECE_BYTES)

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        begin = part * PIECE_BYTES
        count = min(PIECE_BYTES, self.layer_bytes - begin)
        memory = buffer.numpy().data[begin : begin + count]
        self.file.read(memory, layer * self.layer_bytes + begin, count)
        return count

    def check(self) -> None:
        self.file.check()

    def close(self) -> None:
        self.file.close()


class HostSource(LayerSource):
    """Layers in pinned host memory, read once from `origin` and copied to a CUDA device on a separate stream.

    Copies and kernels wait for each other on the device, using one event per buffer; the host waits for neither.
    """

    def __init__(self, origin: TensorSource) -> None:
        self.layer_count = origin.layer_count
        self.layer_bytes = origin.layer_bytes
        self.device = origin.device
        self._layers = [
            torch.empty(self.layer_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(self.layer_count)
        ]
        for layer, memory in enumerate(self._layers):
            for part in range(origin.part_count(layer)):
                origin.read(layer, part, memory)
        self._stream = torch.cuda.Stream(self.device)
        self._copied: dict[int, torch.cuda.Event] = {}  # keyed by buffer address
        self._used: dict[int, torch.cuda.Event] = {}
        self._pending_waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # begin and end of each wait
        self._wait_sec = 0.0

    def part_count(self, layer: int) -> int:
        return 1

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        with torch.cuda.stream(self._stream):
            if (used := self._used.get(buffer.data_ptr())) is not None:
                self._stream.wait_event(used)
            buffer.copy_(self._layers[layer], non_blocking=True)
            self._copied[buffer.data_ptr()] = self._stream.record_event()
        return self.layer_bytes

    def await_read(self, buffer: torch.Tensor) -> None:
        stream = torch.cuda.current_stream(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.record_event(begin)
        stream.wait_event(self._copied[buffer.data_ptr()])
        stream.record_event(end)
        self._pending_waits.append((begin, end))

    def release(self, buffer: torch.Tensor) -> None:
        self._used[buffer.data_ptr()] = torch.cuda.current_stream(self.device).record_event()

    def device_wait_sec(self) -> float:
        while self._pending_waits and self._pending_waits[0][1].query():
            begin, end = self._pending_waits.pop(0)
            self._wait_sec += begin.elapsed_time(end) / 1e3
        return self._wait_sec

    def close(self) -> None:
        self._stream.synchronize()
        self._layers = []
