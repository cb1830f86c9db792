"""How many threads passes use: as many as there are free cores, looked up again while a run goes on.

A pass whose threads wait for each other is as slow as its slowest thread. Where another process wants a core too, that
thread waits for whole time slices, so one thread fewer is faster. Results do not depend on the number of threads.
"""

import ctypes
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch

from .notices import say_once
from .processor import allowed_cores, usable_cores

LOOK_SEC = 0.1  # between two looks at the load; the system counts in steps of 0.01 s
STALE_SEC = 1.0  # what was seen longer ago says nothing about now
SHARED = 0.35  # a core of which others use less than this is free: sharing it still gains


def limit_threads() -> None:
    """Let torch use no more threads than there are cores for this process; more only wait for each other."""
    threads, cores = torch.get_num_threads(), allowed_cores()
    if threads > cores:
        torch.set_num_threads(cores)
        few = "1 core, so it uses 1" if cores == 1 else f"{cores} cores, so it uses {cores}"
        say_once(f"PyTorch would use {threads} threads, but this process may use only {few}")


@contextmanager
def release_threads() -> Iterator[None]:
    """End, afterwards, the OpenMP threads that wait for this thread's next parallel region, which starts them anew.

    Where all threads that were started are more than the cores, libgomp lets those that wait sleep after a few
    microseconds. So the threads of a loader that is done would slow down a run in another thread, up to four times.
    """
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):  # another library, or an old one
            ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD).omp_pause_resource_all(1)


class OtherLoad:
    """The load of other processes on the cores that this one may use, from one look to the next."""

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._at, self._used = self._look()

    def _look(self) -> tuple[float, float]:
        """Return the time, and how many seconds of these cores other processes have used so far."""
        own = time.process_time()
        cores = psutil.cpu_times(percpu=True)
        return time.perf_counter(), sum(_busy_sec(cores[i]) for i in self._cores if i < len(cores)) - own

    def since_last_look(self) -> float:
        """Return how many cores' worth of time other processes have used since the last look."""
        at, used = self._look()
        load = (used - self._used) / max(at - self._at, 1e-9)
        self._at, self._used = at, used
        return min(max(load, 0.0), float(len(self._cores)))


def _busy_sec(times) -> float:
    idle = ("idle", "iowait", "guest", "guest_nice")  # "user" has those of guests already
    return sum(times) - sum(getattr(times, name, 0.0) for name in idle)


def _running_elsewhere() -> int:
    """Return how many threads of other processes run or wait for a core at this moment; 0 where it is unknown."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        running = next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
        own = sum(") R" in path.read_text() for path in Path("/proc/self/task").glob("*/stat"))
    except (OSError, StopIteration):
        return 0
    return max(0, running - own)


class _FreeCores:
    """Knows how many threads may run without sharing a core, and sets torch to that number for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0  # threads of this process that are inside `use_free_cores`
        self._asked = 1  # torch's number of threads before the first of them
        self._looked, self._free = -math.inf, 1
        self._load: OtherLoad | None = None

    def enter(self) -> None:
        with self._lock:
            if not self._users:
                self._asked = torch.get_num_threads()
            self._users += 1
            if self._asked > 1:
                self._look()
                torch.set_num_threads(min(self._asked, self._free))

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            torch.set_num_threads(self._asked)

    def _look(self) -> None:
        now = time.perf_counter()
        if now - self._looked < LOOK_SEC:
            return
        if self._load is None or now - self._looked > STALE_SEC:
            self._load = OtherLoad()
            free = (psutil.cpu_count() or 1) - _running_elsewhere()
        else:
            free = math.ceil(len(usable_cores()) - self._load.since_last_look() - (1 - SHARED))
        self._looked, self._free = now, max(1, free)


_free_cores = _FreeCores()


@contextmanager
def use_free_cores() -> Iterator[None]:
    """Run passes on at most as many threads as there are free cores; torch's own number is the limit.

    That number is in force again afterwards. The load of others is looked up at most every `LOOK_SEC`, so a pass or a
    step can be wrapped at no cost. Several threads may be inside at once.
    """
    _free_cores.enter()
    try:
        yield
    finally:
        _free_cores.leave()
