"""Decoder layers that stream through a few buffers: threads read ahead, into the next pass too."""

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import torch

from .layer_sources import LayerSource

SLOTS = 3  # layer buffers: one in use, the others ahead
SMALL_RING_BYTES = 2**25  # small layers have more buffers, up to these bytes
READERS = 3  # outstanding reads
STALL_SEC = 60.0  # a read that takes longer counts as failed
CLOSING_SEC = 5.0  # closing waits so long for a read that does not return; its thread ends when it returns
Reads = tuple[Future[int], ...]  # of the parts of one layer, each with its bytes


def slots_for(layer_count: int, layer_bytes: int) -> int:
    """Return how many buffers layers of this size stream through: three, and more where they are small.

    Between two passes the disk stops once all buffers are full, and that time does not shrink with the layers. So small
    layers have as many buffers as fit into 32 MiB, but at most for half of the model.
    """
    return max(SLOTS, min(SMALL_RING_BYTES // layer_bytes, layer_count // 2))


class LayerRing:
    """The layers of one model: buffers and the threads that fill them, from the first pass on.

    Turns count layers over all passes since the last restart: turn t is layer t mod L in buffer t mod `slots`.

    Args:
        slots: buffers, at least 2; None for `slots_for` these layers.
    """

    def __init__(self, source: LayerSource, *, slots: int | None = None) -> None:
        slots = slots or slots_for(source.layer_count, source.layer_bytes)
        self.source, self.slots = source, max(2, min(slots, source.layer_count + 1))
        self._buffers: list[torch.Tensor] = []
        self._ahead: deque[Reads] = deque()  # the next turns, and the one in use
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="layer reader")
        self._turn, self._taken_bytes, self._waited = 0, 0, 0.0
        self._in_pass, self._at_start, self._closed = False, False, False
        weakref.finalize(self, _cancel, self._ahead).atexit = False  # readers of a ring that was dropped soon end

    @property
    def buffer_bytes(self) -> int:
        return self.slots * self.source.layer_bytes

    @property
    def wait_sec(self) -> float:
        """Seconds that passes have waited for layers so far."""
        return self._waited + self.source.waited()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, those read ahead included."""
        reads = [read for layer in tuple(self._ahead) for read in layer if read.done() and not read.cancelled()]
        return self._taken_bytes + sum(read.result() for read in reads if read.exception() is None)

    def layers(self) -> Generator[torch.Tensor, None, None]:
        """Yield the buffers of the layers in order, uint8 [layer_bytes]; each is valid until the next is taken."""
        if self._closed:
            raise _closed()
        if self._in_pass:
            raise ValueError("weights: found two passes of one model at a time, expected one after the other")
        if not self._at_start:
            self._restart()
        self._in_pass, self._at_start = True, False
        try:
            for _ in range(self.source.layer_count):
                yield self._next_layer()
                self._read_ahead()
            self._at_start = True
        finally:
            self._in_pass = False

    def close(self) -> None:
        self._closed = True
        _cancel(self._ahead)
        stuck = wait(_reads(self._ahead), CLOSING_SEC).not_done
        self._readers.shutdown(wait=not stuck)
        self._buffers = []
        if not stuck:  # else its files are closed when the last read returns and lets go of them
            self.source.close()

    def _restart(self) -> None:
        """Begin at the first layer: the first time, and after a pass that ended early or failed."""
        _cancel(self._ahead)
        if wait(_reads(self._ahead), STALL_SEC).not_done:
            raise _stalled()
        self._taken_bytes, self._turn = self.bytes_read, 0
        self._ahead.clear()
        self._buffers = self._buffers or [self.source.buffer() for _ in range(self.slots)]
        for turn, buffer in enumerate(self._buffers):
            self.source.release(buffer)  # a pass that ended early may still use it
            self._submit(turn)

    def _submit(self, turn: int) -> None:
        layer, buffer = turn % self.source.layer_count, self._buffers[turn % self.slots]
        parts, read = range(self.source.parts(layer)), self.source.read
        self._ahead.append(tuple(self._readers.submit(read, layer, part, buffer) for part in parts))

    def _next_layer(self) -> torch.Tensor:
        buffer, began = self._buffers[self._turn % self.slots], time.perf_counter()
        try:
            for read in self._ahead[0]:
                read.result(STALL_SEC)
        except TimeoutError as error:
            raise _stalled() from error
        except CancelledError as error:
            raise _closed() from error
        except (ValueError, RuntimeError) as error:  # of the disk; of a device
            raise ValueError(str(error)) from error
        finally:
            self._waited += time.perf_counter() - began
        self.source.check()  # after reading, so that a change during it is found
        self.source.take(buffer)
        return buffer

    def _read_ahead(self) -> None:
        """Let the buffer that was in use be filled again."""
        self.source.release(self._buffers[self._turn % self.slots])
        if self._closed:
            raise _closed()
        self._taken_bytes += sum(read.result() for read in self._ahead.popleft())
        self._submit(self._turn + self.slots)
        self._turn += 1


def _reads(ahead: Iterable[Reads]) -> list[Future[int]]:
    return [read for layer in ahead for read in layer]


def _cancel(ahead: Iterable[Reads]) -> None:
    for read in _reads(ahead):
        read.cancel()


def _closed() -> ValueError:
    return ValueError("weights: found a model that was closed, expected one that is loaded")


def _stalled() -> ValueError:
    return ValueError(f"weights: found a disk that delivered nothing for {STALL_SEC:g} s, expected it to answer")
