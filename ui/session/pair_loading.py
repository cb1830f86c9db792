"""Loads the one model pair that stays in memory, on threads of their own, so that a load can be abandoned.

A download may hang and a large folder takes minutes; Python cannot stop a thread that is inside either. So the waiting
caller may leave: the load then ends by itself, its result is dropped, and the next load does not wait for it.
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from sequoia_core.files.faults import Cancelled

POLL_SEC = 0.05
Progress = Callable[[float, str], None]
Spec = TypeVar("Spec", bound=Hashable)
Pair = TypeVar("Pair")
_LOG = logging.getLogger(__name__)


class _Load(Generic[Spec, Pair]):
    """One load in progress; `pair` or `error` is set before `over`, neither if the load was abandoned."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.over = threading.Event()
        self.pair: Pair | None = None
        self.error: BaseException | None = None
        self.told: tuple[float, str] | None = None

    def tell(self, fraction: float, message: str) -> None:
        """Note how far the load is; called by the thread that loads."""
        self.told = fraction, message


class PairKeeper(Generic[Spec, Pair]):
    """Keeps the last pair that was asked for.

    Args:
        fetch: brings what a spec names onto this machine; it may block for ever, and loads may fetch side by side.
        load: reads it into memory and returns the pair; it is told where to report progress. One at a time, also after
            an abandoned one: while transformers builds a model, PyTorch's default dtype is changed for all
            threads, and two models at once may not fit.
    """

    def __init__(self, fetch: Callable[[Spec], None], load: Callable[[Spec, Progress], Pair]) -> None:
        self._fetch, self._load = fetch, load
        self._lock = threading.Lock()  # guards the fields below; never held while anything slow goes on
        self._reading = threading.Lock()  # held by the thread that reads into memory
        self._held: tuple[Spec, Pair] | None = None
        self._wanted: _Load[Spec, Pair] | None = None
        self._under_way: dict[Spec, _Load[Spec, Pair]] = {}

    @property
    def held(self) -> Spec | None:
        """Which pair is in memory; None when none is."""
        held = self._held
        return None if held is None else held[0]

    @property
    def pair(self) -> Pair | None:
        """The pair in memory, if any."""
        held = self._held
        return None if held is None else held[1]

    def get(self, spec: Spec, cancel: threading.Event, progress: Progress | None = None) -> Pair:
        """Return the pair, loading it in place of the one held; a load of it that was abandoned is taken up again.

        Args:
            cancel: looked at every 50 ms; once set, the load is abandoned.
            progress: called on this thread, every 50 ms, with what the load told last.

        Raises:
            Cancelled: before the pair was there.
            BaseException: whatever `load` raised; then nothing is held.
        """
        with self._lock:
            if self._held is not None and self._held[0] == spec:
                return self._held[1]
            self._held = None  # frees the old pair before the new one needs the memory
            load = self._under_way.get(spec)
            if load is None:
                load = self._under_way[spec] = _Load(spec)
                threading.Thread(target=self._run, args=(load,), name="loader", daemon=True).start()
            self._wanted = load
        while not load.over.wait(POLL_SEC):
            if cancel.is_set():
                with self._lock:
                    self._wanted = None
                raise Cancelled("loading: cancelled before the models were in memory, expected it to end")
            if progress is not None and load.told is not None:
                progress(*load.told)
        if load.error is not None:
            raise load.error
        assert load.pair is not None, "a load that somebody waits for ends with a pair or an error"
        return load.pair

    def drop(self) -> None:
        """Let go of the pair; whoever uses it keeps its own hold."""
        with self._lock:
            self._held = None
        release_memory()

    def _run(self, load: _Load[Spec, Pair]) -> None:
        try:
            self._fetch(load.spec)
        except BaseException as error:  # re-raised in the waiting thread (BaseException: Rust panics)
            self._end(load, error=error)
            return
        with self._reading:
            if self._given_up(load):
                return
            try:
                kept = self._end(load, pair=self._load(load.spec, load.tell))
            except BaseException as error:
                kept = self._end(load, error=error)
            if not kept:
                release_memory()  # before the next load begins

    def _given_up(self, load: _Load[Spec, Pair]) -> bool:
        with self._lock:
            if self._wanted is load:
                return False
            del self._under_way[load.spec]
            load.over.set()
            return True

    def _end(self, load: _Load[Spec, Pair], *, pair: Pair | None = None, error: BaseException | None = None) -> bool:
        """Store the outcome for the waiting caller, or drop it if the load was abandoned -> whether it was kept."""
        with self._lock:
            wanted = self._wanted is load
            if wanted:
                load.pair, load.error, self._wanted = pair, error, None
                if pair is not None:
                    self._held = (load.spec, pair)
            del self._under_way[load.spec]
            load.over.set()
        if not wanted and error is not None:
            _LOG.info("abandoned load of %s failed: %s", load.spec, type(error).__name__)
        return wanted


def release_memory() -> None:
    """Free what nothing refers to any more, on the accelerator too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
