"""The number of threads per pass: one for each free core, updated during a run.

A pass is as slow as its slowest thread. If another process competes for a core, that thread waits for whole time
slices, so one thread fewer is faster. Results do not depend on the number of threads.
"""

import ctypes
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from ..files.notices import notify_once
from .processor import allowed_cores, usable_cores

MEASURE_SEC = 0.1  # interval between load measurements; the system counts in steps of 0.01 s
STALE_SEC = 1.0  # older measurements are discarded
BUSY_CORES = 0.05  # a process that uses less than this share of a core is not counted; background services use 0.02
SHARED = 0.35  # a core counts as free if other processes use less than this share of it, as sharing it still helps


def limit_threads() -> None:
    """Limit torch's threads to the cores available to this process; more would only wait for each other."""
    threads = torch.get_num_threads()
    cores = allowed_cores()
    if threads > cores:
        torch.set_num_threads(cores)
        few = "1 core, so it uses 1" if cores == 1 else f"{cores} cores, so it uses {cores}"
        notify_once(f"PyTorch would use {threads} threads, but this process may use only {few}")


@contextmanager
def release_threads() -> Iterator[None]:
    """On exit, stop the OpenMP threads waiting for this thread's next parallel region, which will restart them.

    If there are more threads than cores, libgomp lets waiting threads sleep after a few microseconds. The threads of a
    finished loader would therefore slow down a run in another thread, by up to a factor of four.
    """
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):  # a different OpenMP library, or an old version
            ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD).omp_pause_resource_all(1)


class OtherLoad:
    """The load that other processes put on this process's cores between consecutive measurements."""

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._at, self._used = self._look()

    def _look(self) -> tuple[float, float]:
        """Return the current time, and the CPU seconds that other processes have used on these cores so far."""
        own_sec = time.process_time()
        cores = psutil.cpu_times(percpu=True)
        return time.perf_counter(), sum(_busy_sec(cores[i]) for i in self._cores if i < len(cores)) - own_sec

    def since_last_look(self) -> float:
        """Return the average number of cores used by other processes since the last measurement."""
        at, used = self._look()
        load = (used - self._used) / max(at - self._at, 1e-9)
        self._at = at
        self._used = used
        return min(max(load, 0.0), float(len(self._cores)))


class TimedLoad(OtherLoad):
    """The load of other processes while something is timed, from the creation of this object to `record`.

    Both list the processes, which takes about 30 µs for each, so call them before and after what is timed.
    """

    def __init__(self) -> None:
        self._process_sec_before = _process_sec()
        super().__init__()
        self._started = self._at

    def record(self) -> dict[str, Any]:
        """Return the share of this process's cores that others used, and the number of processes that used them.

        The share includes time taken by other virtual machines. In a container, other processes may be invisible.
        """
        share = self.since_last_look() / len(self._cores)
        least = BUSY_CORES * (self._at - self._started)
        before = self._process_sec_before
        busy = [process for process, sec in _process_sec().items() if sec - before.get(process, 0.0) > least]
        return {"share": round(share, 3), "processes": sum(_may_use(process, self._cores) for process in busy)}


def _process_sec() -> dict[int, float]:
    """Return the CPU seconds of every other process by its id, including those of its finished children."""
    readable = psutil.process_iter(["cpu_times"], ad_value=None)
    times = {process.pid: process.info["cpu_times"] for process in readable if process.pid != os.getpid()}
    return {process: sum(each[:4]) for process, each in times.items() if each is not None}


def _may_use(process: int, cores: list[int]) -> bool:
    """Return whether a process's affinity includes one of the cores; True if unknown."""
    try:
        return not set(cores).isdisjoint(psutil.Process(process).cpu_affinity())
    except (psutil.Error, AttributeError):  # it has ended, or the system has no affinity
        return True


def _busy_sec(times) -> float:
    idle = ("idle", "iowait", "guest", "guest_nice")  # "user" already includes guest time
    return sum(times) - sum(getattr(times, name, 0.0) for name in idle)


def _running_elsewhere() -> int:
    """Return the number of other processes' threads that are running or waiting for a core; 0 if unknown."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        running = next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))
        own_running = sum(") R" in path.read_text() for path in Path("/proc/self/task").glob("*/stat"))
    except (OSError, StopIteration):
        return 0
    return max(0, running - own_running)


class _FreeCores:
    """Temporarily limits torch's threads to the number of free cores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0  # number of threads inside `use_free_cores`
        self._asked = 1  # torch's number of threads outside `use_free_cores`
        self._looked = -math.inf
        self._free = 1
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
        if now - self._looked < MEASURE_SEC:
            return
        if self._load is None or now - self._looked > STALE_SEC:
            self._load = OtherLoad()
            free = (psutil.cpu_count() or 1) - _running_elsewhere()
        else:
            free = math.ceil(len(usable_cores()) - self._load.since_last_look() - (1 - SHARED))
        self._looked = now
        self._free = max(1, free)


_free_cores = _FreeCores()


@contextmanager
def use_free_cores() -> Iterator[None]:
    """Limit torch's threads to the number of free cores, and restore torch's setting on exit.

    The load is measured at most every `MEASURE_SEC`, so wrapping a pass or a step costs almost nothing. Several threads
    may be inside at once.
    """
    _free_cores.enter()
    try:
        yield
    finally:
        _free_cores.leave()
