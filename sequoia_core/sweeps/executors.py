"""Where jobs run: processes of this machine, or a Dask cluster; both are `concurrent.futures` executors."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..files.safe_files import one_line
from ..native.processor import allowed_cores, usable_cores
from .jobs import Job
from .worker import Done, run_job

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from distributed import Client

MACHINE = "machine"  # the Dask resource of the one worker of a machine that may time
CONNECT_SEC, RECONNECT_SEC = 10.0, 600.0
PER_CORE = 4  # processes at most


def is_death(error: BaseException) -> bool:
    """Whether an error says that worker processes died: the local pool's, or Dask's own after several attempts."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def check_request(count: int | None, address: str | None) -> None:
    """Refuse a number of processes or a scheduler's address that cannot be."""
    if count is not None and not 1 <= count <= PER_CORE * allowed_cores():
        found = str(count)[:40]
        raise ValueError(
            f"--workers: found {found}, expected 1 to {PER_CORE * allowed_cores()} on {allowed_cores()} cores"
        )
    if address is not None and not re.fullmatch(r"(tcp|tls|ucx|wss?)://[\w.\-\[\]:]+:\d{1,5}", address):
        raise ValueError(f"--scheduler: found {address[:60]!r}, expected an address such as tcp://10.0.0.1:8786")
    if None not in (count, address):
        raise ValueError(f"found --workers {count} beside --scheduler {address}, expected one: the cluster has its own")


class LocalWorkers:
    """Processes of this machine, each on cores of its own; without `count`, as many as there are cores for.

    Attributes:
        count: how many jobs are done at once.
        machines: how many timed jobs are done at once.
        note: a warning about these numbers, for people; mostly empty.
    """

    machines = 1

    def __init__(self, count: int | None = None, *, threads: int = 1) -> None:
        cores, allowed = usable_cores(), allowed_cores()
        if threads > allowed:
            raise ValueError(f"threads: found {threads}, expected at most {allowed}: the cores that it may use")
        self.count = count or max(1, allowed // threads)
        needed = self.count * threads
        self.note = f"{needed} threads share {allowed} cores: each takes longer" if needed > allowed else ""
        each = max(1, len(cores) // self.count)
        self._cores = [cores[(n * each) % len(cores) :][:each] for n in range(self.count)]
        self._executor = self._start()

    def submit(self, job: Job) -> Future[Done]:
        """Give out a job, to a new executor where the last one broke or was lost."""
        with _no_main():
            try:
                return self._executor.submit(run_job, job)
            except BrokenExecutor:
                self._executor = self._start()
                return self._executor.submit(run_job, job)
            except OSError as error:
                raise ValueError(f"found no process to start ({error}), expected room for {self.count}") from error

    def lost(self) -> bool:
        """Return whether jobs under way will never end, through no fault of theirs."""
        return False  # a broken pool ends its futures itself

    def close(self) -> None:
        """End; jobs under way are given up."""
        processes = list((self._executor._processes or {}).values())  # no public way ends a job that is under way
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join(5)

    def _start(self) -> ProcessPoolExecutor:
        context = get_context("spawn")
        queue: Queue = context.Queue()
        for cores in self._cores:
            queue.put(cores)
        return ProcessPoolExecutor(self.count, context, _begin, (queue,))


@contextmanager
def _no_main() -> Iterator[None]:
    """Hide the main module while a process starts, which would run it: a Streamlit page, a script without a guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin(cores: Queue) -> None:
    """Prepare a worker process: its own cores, an end with its parent, and no answer to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores.get())

    def watch() -> None:
        above = parent_process()
        if above is not None:
            above.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class DaskWorkers:
    """The workers of a running Dask scheduler (extra `cluster`).

    Timed jobs go to workers that were started with the resource "machine", one on each machine; without `timed` a
    cluster may have none.
    """

    def __init__(self, address: str, *, timed: bool = False) -> None:
        try:
            import distributed  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "--scheduler: found no package distributed, expected it: pip install 'sequoia-studio[cluster]'"
            ) from error
        self.address = address
        self._client = self._connected(CONNECT_SEC)
        if timed and not self.machines:
            self.close()
            raise ValueError(
                f"{address}: found no worker with the resource {MACHINE}, expected one on each machine that times "
                f'(dask worker {address} --nworkers 1 --nthreads 1 --memory-limit 0 --resources "{MACHINE}=1")'
            )

    @property
    def count(self) -> int:
        return max(1, sum(worker["nthreads"] for worker in self._workers()))

    @property
    def machines(self) -> int:
        return sum(int(worker["resources"].get(MACHINE, 0)) for worker in self._workers())

    def _workers(self) -> list[dict[str, Any]]:
        """Return what the scheduler knows of each worker; none while it is lost.

        Not `Client.scheduler_info`: the client itself asks every two seconds for none of the workers, into the same
        place, and at times that is what it returns.
        """
        if self.lost():
            return []
        with suppress(OSError):
            return list(self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"].values())
        return []

    def submit(self, job: Job) -> Future[Done]:
        if self.lost():
            self.close()
            self._client = self._connected(RECONNECT_SEC)
        # Not pure: a job that ran before may have to run again, where its result was lost.
        executor: Executor = self._client.get_executor(pure=False, resources={MACHINE: 1} if job.timed else None)
        return executor.submit(run_job, job)

    def lost(self) -> bool:
        return self._client.status != "running"

    def close(self) -> None:
        self._client.close(timeout=5)

    def _connected(self, patience: float) -> Client:
        from distributed import Client

        until = time.monotonic() + patience
        while True:
            client = None
            try:
                client = Client(self.address, timeout=5, set_as_default=False)
                client.wait_for_workers(1, timeout=max(1.0, min(30.0, until - time.monotonic())))
                return client
            except (OSError, TimeoutError, ValueError) as error:
                if client is not None:
                    client.close(timeout=5)
                if time.monotonic() > until:
                    raise ValueError(
                        f"{self.address}: found no Dask scheduler with a worker ({one_line(error)}), expected one"
                    ) from error
                time.sleep(1.0)
