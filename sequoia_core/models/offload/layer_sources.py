"""Where streamed layers come from: the model's own files, one packed file, or pinned memory beside a GPU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .direct_reads import ALIGNMENT, DirectFile, aligned_memory, round_up
from .tensor_files import PIECE, StoredTensor, TensorFiles, pieces

LINE = 64  # bytes: products of a matrix aligned differently may differ in the last bit


@dataclass(frozen=True, slots=True)
class Place:
    """Where one matrix of a layer lies in a buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the matrix as a view of a buffer."""
        return buffer[self.begin : self.end].view(self.dtype).view(self.shape)


def places_of(matrices: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> tuple[Place, ...]:
    """Arrange a layer's matrices, of these dtypes and shapes, in a buffer, one after the other."""
    places, begin = [], 0
    for dtype, shape in matrices:
        end = begin + math.prod(shape) * dtype.itemsize
        places.append(Place(dtype, shape, begin, end))
        begin = round_up(end, LINE)
    return tuple(places)


def host_buffer(size: int) -> torch.Tensor:
    """Return aligned memory of the CPU, uint8 [size]."""
    return torch.frombuffer(aligned_memory(size), dtype=torch.uint8, count=size)


class LayerSource:
    """Where layers come from: `layer_count` of them, and `layer_bytes` of a buffer that has room for any."""

    layer_count: int
    layer_bytes: int
    device: torch.device

    def buffer(self) -> torch.Tensor:
        """Return memory for one layer, uint8 [at least layer_bytes] on the device, aligned to 64 bytes."""
        if self.device.type == "cpu":
            return host_buffer(self.layer_bytes)
        with torch.inference_mode(False):  # else the threads that fill it could not
            return torch.empty(self.layer_bytes, dtype=torch.uint8, device=self.device)

    def parts(self, layer: int) -> int:
        """Return the number of parts in which a layer is read."""
        raise NotImplementedError

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        """Read one part of a layer into a buffer and return the bytes read; called by several threads."""
        raise NotImplementedError

    def take(self, buffer: torch.Tensor) -> None:
        """Have the device wait until what was read into a buffer is there."""

    def release(self, buffer: torch.Tensor) -> None:
        """Let no later read overwrite a buffer that kernels still use."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def waited(self) -> float:
        """Return the seconds that the device waited itself so far."""
        return 0.0

    def check(self) -> None:
        """Refuse a source that has changed since it was opened."""

    def close(self) -> None:
        """Close files and free memory, after the last read."""


class TensorSource(LayerSource):
    """Layers from the model's own files, converted to the dtype of their places.

    `stored` has each layer's matrices in the files, `places` where they go, in the same order. The files stay open,
    since the resident weights come from them too.
    """

    def __init__(
        self,
        files: TensorFiles,
        stored: Sequence[Sequence[StoredTensor]],
        places: Sequence[Sequence[Place]],
        device: torch.device,
    ) -> None:
        self.files, self.stored, self.places, self.device = files, stored, places, device
        self.layer_count = len(stored)
        self.layer_bytes = max(layer[-1].end for layer in places)
        self._pieces = [pieces(layer) for layer in stored]

    def parts(self, layer: int) -> int:
        return len(self._pieces[layer])

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        flat = [buffer[place.begin : place.end].view(place.dtype) for place in self.places[layer]]
        return self.files.read_piece(self._pieces[layer][part], self.stored[layer], flat)

    def check(self) -> None:
        self.files.check()


class PackedSource(LayerSource):
    """Layers of one length from one file, each a multiple of 4,096 bytes: read straight into the buffers."""

    device = torch.device("cpu")

    def __init__(self, file: DirectFile, layer_count: int, layer_bytes: int) -> None:
        assert layer_bytes % ALIGNMENT == 0, "direct reads begin and end at whole blocks"
        self.file, self.layer_count, self.layer_bytes = file, layer_count, layer_bytes

    def parts(self, layer: int) -> int:
        return -(-self.layer_bytes // PIECE)

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        begin = part * PIECE
        count = min(PIECE, self.layer_bytes - begin)
        memory = buffer.numpy().data[begin : begin + count]
        self.file.read(memory, layer * self.layer_bytes + begin, count)
        return count

    def check(self) -> None:
        self.file.check()

    def close(self) -> None:
        self.file.close()


class HostSource(LayerSource):
    """Layers from pinned memory of the host, which `origin` fills once, to a CUDA device, on a stream of its own.

    Copies and kernels wait for each other on the device, by an event of each buffer; the host waits for neither.
    """

    def __init__(self, origin: TensorSource) -> None:
        self.layer_count, self.layer_bytes, self.device = origin.layer_count, origin.layer_bytes, origin.device
        self._layers = [
            torch.empty(self.layer_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(self.layer_count)
        ]
        for layer, memory in enumerate(self._layers):
            for part in range(origin.parts(layer)):
                origin.read(layer, part, memory)
        self._stream = torch.cuda.Stream(self.device)
        self._filled: dict[int, torch.cuda.Event] = {}  # by the address of a buffer
        self._used: dict[int, torch.cuda.Event] = {}
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # begin and end of those not yet added up
        self._waited = 0.0

    def parts(self, layer: int) -> int:
        return 1

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        with torch.cuda.stream(self._stream):
            if (used := self._used.get(buffer.data_ptr())) is not None:
                self._stream.wait_event(used)
            buffer.copy_(self._layers[layer], non_blocking=True)
            self._filled[buffer.data_ptr()] = self._stream.record_event()
        return self.layer_bytes

    def take(self, buffer: torch.Tensor) -> None:
        stream = torch.cuda.current_stream(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.record_event(begin)
        stream.wait_event(self._filled[buffer.data_ptr()])
        stream.record_event(end)
        self._waits.append((begin, end))

    def release(self, buffer: torch.Tensor) -> None:
        self._used[buffer.data_ptr()] = torch.cuda.current_stream(self.device).record_event()

    def waited(self) -> float:
        while self._waits and self._waits[0][1].query():
            begin, end = self._waits.pop(0)
            self._waited += begin.elapsed_time(end) / 1e3
        return self._waited

    def close(self) -> None:
        self._stream.synchronize()
        self._layers = []
