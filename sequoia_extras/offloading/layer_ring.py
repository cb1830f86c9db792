"""Decoder layers streamed through a few buffers by threads that read ahead, even into the next pass."""

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import torch

from .layer_sources import LayerSource

DEFAULT_SLOTS = 3  # number of layer buffers: one for the current layer, the others for reading ahead
# Small layers get more than the default number of buffers, up to this total size.
SMALL_RING_BYTES = 2**25
READERS = 3  # number of concurrent reads
STALL_SEC = 60.0  # time after which a read is considered to have failed
CLOSING_SEC = 5.0  # longest time that `close` waits for a hanging read, whose thread ends when the read returns
# The reads of a layer's parts, each of which returns the number of bytes read.
Reads = tuple[Future[int], ...]


def slots_for(layer_count: int, layer_bytes: int) -> int:
    """Return the number of buffers for layers of this size: three, or more for small layers.

    Between two passes the disk idles once all buffers are full, and smaller layers fill them sooner. Small layers
    therefore get as many buffers as fit into 32 MiB, but at most enough for half of the model.
    """
    return max(DEFAULT_SLOTS, min(SMALL_RING_BYTES // layer_bytes, layer_count // 2))


class LayerRing:
    """A ring of buffers for a model's layers, and the threads that fill it.

    Turns count layers over all passes since the last restart. On turn t, layer t mod L is in buffer t mod `slots`.

    Args:
        slots: number of buffers, at least 2; None for the number that `slots_for` returns.
    """

    def __init__(self, source: LayerSource, *, slots: int | None = None) -> None:
        slots = slots or slots_for(source.layer_count, source.layer_bytes)
        self.source = source
        self.slots = max(2, min(slots, source.layer_count + 1))
        self._buffers: list[torch.Tensor] = []
        self._ahead: deque[Reads] = deque()  # reads of the current turn and of those after it
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="layer reader")
        self._turn = 0
        self._consumed_bytes = 0
        self._wait_sec = 0.0
        self._in_pass = False
        self._at_start = False
        self._closed = False
        # If the ring is dropped without being closed, its reader threads end soon.
        weakref.finalize(self, _cancel, self._ahead).atexit = False

    @property
    def buffer_bytes(self) -> int:
        return self.slots * self.source.layer_bytes

    @property
    def wait_sec(self) -> float:
        """Total seconds that passes have waited for layers."""
        return self._wait_sec + self.source.device_wait_sec()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, including layers read ahead."""
        reads = [read for read in _flatten(tuple(self._ahead)) if read.done() and not read.cancelled()]
        return self._consumed_bytes + sum(read.result() for read in reads if read.exception() is None)

    def layers(self) -> Generator[torch.Tensor, None, None]:
        """Yield each layer's buffer in order, uint8 [layer_bytes]; it is valid until the next one is requested."""
        if self._closed:
            raise _closed()
        if self._in_pass:
            raise ValueError("weights: a pass of this model is already running; run its passes one after the other")
        if not self._at_start:
            self._restart()
        self._in_pass = True
        self._at_start = False
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
        stuck = wait(_flatten(self._ahead), CLOSING_SEC).not_done
        self._readers.shutdown(wait=not stuck)
        self._buffers = []
        # If a read is stuck, the files close when it drops its reference to them.
        if not stuck:
            self.source.close()

    def _restart(self) -> None:
        """Start again at the first layer: on first use, and after a pass that ended early or failed."""
        _cancel(self._ahead)
        if wait(_flatten(self._ahead), STALL_SEC).not_done:
            raise _stalled()
        self._consumed_bytes = self.bytes_read
        self._turn = 0
        self._ahead.clear()
        self._buffers = self._buffers or [self.source.allocate() for _ in range(self.slots)]
        for turn, buffer in enumerate(self._buffers):
            # A pass that ended early may still be using the buffer.
            self.source.release(buffer)
            self._submit(turn)

    def _submit(self, turn: int) -> None:
        layer = turn % self.source.layer_count
        buffer = self._buffers[turn % self.slots]
        parts = range(self.source.part_count(layer))
        self._ahead.append(tuple(self._readers.submit(self.source.read, layer, part, buffer) for part in parts))

    def _next_layer(self) -> torch.Tensor:
        began = time.perf_counter()
        try:
            for read in self._ahead[0]:
                read.result(STALL_SEC)
        except TimeoutError as error:
            raise _stalled() from error
        except CancelledError as error:
            raise _closed() from error
        # The disk or the device may have failed.
        except (ValueError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        finally:
            self._wait_sec += time.perf_counter() - began
        # Check after the read, so that a change during the read is detected.
        self.source.check()
        buffer = self._buffers[self._turn % self.slots]
        self.source.await_read(buffer)
        return buffer

    def _read_ahead(self) -> None:
        """Start reading into the buffer of the layer that was just used."""
        self.source.release(self._buffers[self._turn % self.slots])
        if self._closed:
            raise _closed()
        self._consumed_bytes += sum(read.result() for read in self._ahead.popleft())
        self._submit(self._turn + self.slots)
        self._turn += 1


def _flatten(ahead: Iterable[Reads]) -> list[Future[int]]:
    return [read for layer in ahead for read in layer]


def _cancel(ahead: Iterable[Reads]) -> None:
    for read in _flatten(ahead):
        read.cancel()


def _closed() -> ValueError:
    return ValueError("weights: the model was closed; load it again")


def _stalled() -> ValueError:
    return ValueError(f"weights: the disk did not respond within {STALL_SEC:g} s, expected the read to complete")
