"""Decoder layers that stream through a few buffers: threads read ahead, into the next pass too."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Generator
from typing import NamedTuple, Protocol

import torch

SLOTS = 3  # layer buffers: one in use, the others ahead
SMALL_RING_BYTES = 2**25  # small layers have more buffers, up to these bytes
READERS = 3  # outstanding reads
STALL_SEC = 60.0  # a disk that delivers nothing for so long counts as failed
CLOSING_SEC = 5.0  # closing waits so long for a read that does not return; its thread ends when it returns


def slots_for(layer_count: int, layer_bytes: int) -> int:
    """Return how many buffers layers of this size stream through: three, and more where they are small.

    Between two passes the disk stops once all buffers are full, and that time does not shrink with the layers. So small
    layers have as many buffers as fit into 32 MiB, but at most for half of the model.
    """
    return max(SLOTS, min(SMALL_RING_BYTES // layer_bytes, layer_count // 2))


class LayerSource(Protocol):
    """Where layers come from.

    Attributes:
        layer_count: L.
        layer_bytes: of a buffer that has room for any layer.
    """

    layer_count: int
    layer_bytes: int
    device: torch.device

    def buffer(self) -> torch.Tensor:
        """Return memory for one layer, uint8 [at least layer_bytes] on the device, aligned to 64 bytes."""
        ...

    def parts(self, layer: int) -> int:
        """Return the number of parts in which a layer is read."""
        ...

    def read(self, layer: int, part: int, buffer: torch.Tensor) -> int:
        """Read one part of a layer into a buffer; return bytes read. Called by several threads."""
        ...

    def check(self) -> None:
        """Refuse a source that has changed since it was opened."""
        ...

    def close(self) -> None:
        """Close files and free memory; called after the last read."""
        ...


class _Part(NamedTuple):
    turn: int
    layer: int
    part: int


class _Reader(threading.Thread):
    """One of the threads that read."""


class _Reading:
    """State shared by the reading threads and the pass, without a reference to the ring, so that its end ends reading.

    Turns count layers over all passes since the last restart: turn t is layer t mod L in buffer t mod R.

    Attributes:
        released: turns whose buffer may be filled again.
        next_turn, next_part: the part that is read next.
        left: parts that each buffer still lacks.
        running: parts that are being read now.
        fault: the error, for the pass that waits.
        over: reading has ended.
        threads: readers that have not ended.
    """

    def __init__(self, source: LayerSource, slots: int) -> None:
        self.source = source
        self.buffers: list[torch.Tensor] = []
        self.changed = threading.Condition(threading.RLock())
        self.slots, self.threads, self.over, self.running = slots, 0, False, 0
        self.bytes_read, self.wait_sec = 0, 0.0
        self.restart()

    def restart(self) -> None:
        """Begin at the first layer again; called where no part is being read."""
        self.released = self.next_turn = self.next_part = 0
        self.left = [0] * self.slots
        self.fault: ValueError | None = None

    def work(self) -> None:
        """Read parts until reading ends; run by each thread."""
        while (part := self._take_part()) is not None:
            try:
                count = self.source.read(part.layer, part.part, self.buffers[part.turn % self.slots])
            except (ValueError, RuntimeError) as error:  # of the disk; of a device
                self._done(part, 0, ValueError(str(error)))
            else:
                self._done(part, count, None)
        with self.changed:
            self.threads -= 1
            if not self.threads:
                self._end()

    def _take_part(self) -> _Part | None:
        with self.changed:
            while not self.over and (self.fault is not None or self.next_turn >= self.released + self.slots):
                self.changed.wait()
            if self.over:
                return None
            turn, part = self.next_turn, self.next_part
            layer = turn % self.source.layer_count
            parts = self.source.parts(layer)
            if part == 0:
                self.left[turn % self.slots] = parts
            self.next_turn, self.next_part = (turn, part + 1) if part + 1 < parts else (turn + 1, 0)
            self.running += 1
            return _Part(turn, layer, part)

    def _done(self, part: _Part, count: int, fault: ValueError | None) -> None:
        with self.changed:
            self.running -= 1
            self.bytes_read += count
            self.left[part.turn % self.slots] -= 1
            self.fault = self.fault or fault
            self.changed.notify_all()

    def stop(self) -> None:
        """End reading; the last thread frees everything. It never waits, because it may run anywhere."""
        with self.changed:
            self.over = True
            self.changed.notify_all()
            if not self.threads:
                self._end()

    def _end(self) -> None:
        self.buffers = []
        self.source.close()


class LayerRing:
    """The layers of one model (`protocol.Weights`): R buffers and the threads that fill them, from the first pass on.

    Args:
        slots: R, at least 2; None for `slots_for` these layers.
        readers: threads, each with one outstanding read.
    """

    def __init__(self, source: LayerSource, *, slots: int | None = None, readers: int = READERS) -> None:
        slots = slots or slots_for(source.layer_count, source.layer_bytes)
        self._reading = _Reading(source, max(2, min(slots, source.layer_count + 1)))
        self._readers = readers
        self._in_pass, self._turn, self._device = False, 0, source.device
        self._threads: list[_Reader] = []
        self._finalizer = weakref.finalize(self, self._reading.stop)
        self._finalizer.atexit = False
        _OPEN.add(self)

    @property
    def wait_sec(self) -> float:
        """Seconds that passes have waited for layers so far."""
        return self._reading.wait_sec

    @property
    def slots(self) -> int:
        return self._reading.slots

    @property
    def buffer_bytes(self) -> int:
        return self._reading.slots * self._reading.source.layer_bytes

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, those read ahead included."""
        return self._reading.bytes_read

    def layers(self) -> Generator[torch.Tensor, None, None]:
        """Yield the buffers of the layers in order, uint8 [layer_bytes]; each is valid until the next is taken."""
        state = self._reading
        if state.over:
            raise ValueError("weights: found a model that was closed, expected one that is loaded")
        if self._in_pass:
            raise ValueError("weights: found two passes of one model at a time, expected one after the other")
        self._start()
        if self._turn % state.source.layer_count or state.fault is not None:
            self._restart()
        self._in_pass = True
        try:
            for _ in range(state.source.layer_count):
                yield self._await_layer()
                self._release()
        finally:
            self._in_pass = False

    def close(self) -> None:
        self._reading.stop()
        until = time.monotonic() + CLOSING_SEC
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads = []

    def _start(self) -> None:
        state = self._reading
        if self._threads:
            return
        state.buffers = [state.source.buffer() for _ in range(state.slots)]
        self._threads = [_Reader(target=state.work, name="layer reader", daemon=True) for _ in range(self._readers)]
        state.threads = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _restart(self) -> None:
        """Begin at the first layer, after a pass that ended early or failed."""
        state = self._reading
        with state.changed:
            held, state.fault = state.fault, state.fault or ValueError("weights: restarting")  # stops the readers
            if not state.changed.wait_for(lambda: not state.running, STALL_SEC):
                raise held or _stalled()
            state.restart()
            self._turn = 0
            state.changed.notify_all()

    def _await_layer(self) -> torch.Tensor:
        state, turn = self._reading, self._turn
        slot, began = turn % state.slots, time.perf_counter()

        def is_there() -> bool:
            return state.fault is not None or (state.next_turn > turn and not state.left[slot])

        with state.changed:
            seen = state.bytes_read
            while not is_there():
                if not state.changed.wait(STALL_SEC) and seen == state.bytes_read:
                    state.fault = _stalled()
                seen = state.bytes_read
            state.wait_sec += time.perf_counter() - began
            if state.fault is not None:
                raise state.fault
        state.source.check()  # after reading, so that a change during it is found
        return state.buffers[slot]

    def _release(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # kernels may still read the buffer
        state = self._reading
        with state.changed:
            self._turn += 1
            state.released = self._turn
            state.changed.notify_all()


_OPEN: weakref.WeakSet[LayerRing] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all readers before the interpreter exits: a thread that it ends during a read aborts the process."""
    for ring in list(_OPEN):
        ring.close()
    for thread in threading.enumerate():
        if isinstance(thread, _Reader):  # of a ring that was deleted just before
            thread.join(CLOSING_SEC)


def _stalled() -> ValueError:
    return ValueError(f"weights: found a disk that delivered nothing for {STALL_SEC:g} s, expected it to answer")
