"""Loading the shared model pair on background threads, so that a load can be abandoned.

A download may hang, a large folder takes minutes to load, and Python cannot stop a thread. Therefore, the caller may
stop waiting: the load then runs to its end, its result is discarded, and the next download does not wait for it.
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from sequoia_core.files.faults import Cancelled

LOAD_POLL_SEC = 0.05
Progress = Callable[[float, str], None]
Spec = TypeVar("Spec", bound=Hashable)
Pair = TypeVar("Pair")
_LOG = logging.getLogger(__name__)


class _Load(Generic[Spec, Pair]):
    """A load in progress; its future never ends if the load was abandoned."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.future: Future[Pair] = Future()
        self.progress: tuple[float, str] | None = None

    def report(self, fraction: float, message: str) -> None:
        """Record the loading thread's progress."""
        self.progress = (fraction, message)


class PairLoader(Generic[Spec, Pair]):
    """Loads pairs on request and keeps the last one in memory.

    Args:
        fetch: downloads or converts a spec's files; it may block forever, and several loads may call it at once.
        load: reads the files. Both take a function that reports progress. Only one call runs at a time, even after a
            load was abandoned: transformers changes PyTorch's default dtype for all threads while it builds a model,
            and two models may not fit in memory.
    """

    def __init__(self, fetch: Callable[[Spec, Progress], None], load: Callable[[Spec, Progress], Pair]) -> None:
        self._fetch = fetch
        self._load = load
        self._lock = threading.Lock()  # guards the fields below; held only briefly
        self._reading = threading.Lock()  # held while a thread reads models into memory
        self.loaded: tuple[Spec, Pair] | None = None
        self._wanted: _Load[Spec, Pair] | None = None
        self._in_progress: dict[Spec, _Load[Spec, Pair]] = {}

    @property
    def spec(self) -> Spec | None:
        """The spec of the pair in memory; None if there is none."""
        loaded = self.loaded
        return None if loaded is None else loaded[0]

    def get(self, spec: Spec, cancel: threading.Event, progress: Progress | None = None) -> Pair:
        """Return the pair, replacing the one in memory; an abandoned load of the same pair is resumed.

        Args:
            cancel: checked every 50 ms; once set, the load is abandoned.
            progress: called on this thread every 50 ms with the latest progress.

        Raises:
            Cancelled: if cancelled before the pair was loaded.
            BaseException: whatever `load` raised; no pair is in memory then.
        """
        with self._lock:
            if self.loaded is not None and self.loaded[0] == spec:
                return self.loaded[1]
            self.loaded = None  # free the old pair before the new one needs the memory
            load = self._in_progress.get(spec)
            if load is None:
                load = self._in_progress[spec] = _Load(spec)
                threading.Thread(target=self._run, args=(load,), name="loader", daemon=True).start()
            self._wanted = load
        while not wait([load.future], LOAD_POLL_SEC).done:
            if cancel.is_set():
                with self._lock:
                    self._wanted = None
                raise Cancelled("loading was cancelled before the models were in memory")
            if progress is not None and load.progress is not None:
                progress(*load.progress)
        return load.future.result()

    def unload(self) -> None:
        """Drop the reference to the pair; jobs that use it keep theirs."""
        with self._lock:
            self.loaded = None
        release_memory()

    def _run(self, load: _Load[Spec, Pair]) -> None:
        try:
            self._fetch(load.spec, load.report)
            with self._reading:
                if self._was_abandoned(load):
                    return
                pair = self._load(load.spec, load.report)
                if self._end(load, pair):
                    load.future.set_result(pair)
                else:
                    del pair
                    release_memory()  # before the next load begins
        except BaseException as error:  # including Rust panics; raised again in the waiting thread
            if self._end(load):
                load.future.set_exception(error)
            else:
                _LOG.info("abandoned load of %s failed: %s", load.spec, type(error).__name__)

    def _was_abandoned(self, load: _Load[Spec, Pair]) -> bool:
        with self._lock:
            if self._wanted is load:
                return False
            del self._in_progress[load.spec]
            return True

    def _end(self, load: _Load[Spec, Pair], pair: Pair | None = None) -> bool:
        """End a load, keeping its pair in memory; return False if the load was abandoned."""
        with self._lock:
            del self._in_progress[load.spec]
            if self._wanted is not load:
                return False
            self._wanted = None
            if pair is not None:
                self.loaded = (load.spec, pair)
            return True


def release_memory() -> None:
    """Collect garbage and free cached GPU memory."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
