"""Workers that run jobs: processes on this machine or a Dask cluster, both through `concurrent.futures`."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sequoia_core.files.libraries import missing_module_message
from sequoia_core.files.safe_files import one_line
from sequoia_core.models.processor import allowed_cores, usable_cores

from .jobs import SweepJob
from .worker import JobResult, run_job

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

MACHINE_RESOURCE = "machine"  # Dask resource of the one worker per machine that runs timed jobs
CONNECT_SEC = 10
MAX_WORKERS_PER_CORE = 4


def is_worker_death(error: BaseException) -> bool:
    """Return whether an error from the local pool, or from Dask after its retries, means that a worker died."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def check_workers(count: int | None, scheduler: str | None) -> None:
    """Raise ValueError for an invalid number of processes or scheduler address, or for both options together."""
    limit = MAX_WORKERS_PER_CORE * allowed_cores()
    if count is not None and count > limit:
        raise ValueError(f"--workers: found {count}, expected 1 to {limit} on {allowed_cores()} cores")
    if scheduler is not None and not re.fullmatch(r"(tcp|tls|ucx|wss?)://[\w.\-\[\]:]+:\d{1,5}", scheduler):
        raise ValueError(f"--scheduler: found {scheduler[:60]!r}, expected an address such as tcp://10.0.0.1:8786")
    if count is not None and scheduler is not None:
        raise ValueError(f"--workers: found {count} together with --scheduler, expected only one of them")


class LocalWorkers:
    """Processes on this machine, each pinned to its share of the cores; by default, one per `threads` cores.

    Attributes:
        count: number of jobs that run at once.
        machines: number of timed jobs that run at once.
        note: warning about these numbers; empty if there is none.
    """

    machines = 1
    lost = False  # always, because a broken pool fails its futures itself

    def __init__(self, count: int | None = None, *, threads: int = 1) -> None:
        cores = usable_cores()
        allowed = allowed_cores()
        if threads > allowed:
            raise ValueError(f"threads: found {threads}, expected at most {allowed}, the number of usable cores")
        self.count = count or max(1, allowed // threads)
        needed = self.count * threads
        self.note = f"{needed} threads share {allowed} cores, so each job takes longer" if needed > allowed else ""
        share = max(1, len(cores) // self.count)
        self._cores = [cores[(n * share) % len(cores) :][:share] for n in range(self.count)]
        self._executor = self._start()

    def submit(self, job: SweepJob) -> Future[JobResult]:
        """Submit a job, replacing the executor if a dead worker broke it."""
        with _hidden_main_module():
            try:
                return self._executor.submit(run_job, job)
            except BrokenExecutor:
                self._executor = self._start()
                return self._executor.submit(run_job, job)
            except OSError as error:
                raise ValueError(f"cannot start {self.count} processes ({error}); is there enough memory?") from error

    def close(self) -> None:
        """Stop the workers, abandoning running jobs."""
        # The executor has no public way to stop a running job.
        processes = list((self._executor._processes or {}).values())
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
        return ProcessPoolExecutor(self.count, context, _initialize_worker, (queue,))


@contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Hide the main module while a process starts: spawning would run a Streamlit page or an unguarded script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _initialize_worker(cores: Queue) -> None:
    """Pin a worker process to its cores, ignore Ctrl-C, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores.get())

    def exit_with_parent() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


class DaskWorkers:
    """The workers of a running Dask cluster (extra `cluster`), through Dask's executor.

    Timed jobs go to workers started with the resource "machine", of which there should be one per machine.
    """

    def __init__(self, address: str, *, timed: bool = False) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise ValueError(missing_module_message(error, "--scheduler")) from error
        client = None
        try:
            client = Client(address, timeout=CONNECT_SEC, set_as_default=False)
            client.wait_for_workers(1, timeout=CONNECT_SEC)
        except (OSError, TimeoutError, ValueError) as error:
            if client is not None:
                client.close(timeout=5)
            raise ValueError(
                f"{address[:60]}: cannot reach a Dask scheduler with workers ({one_line(error)})"
            ) from error
        self._client = client
        if timed and not self.machines:
            self.close()
            raise ValueError(
                f"{address}: found no worker with the resource {MACHINE_RESOURCE}, expected one on each machine for "
                f'timed jobs (dask worker {address} --nworkers 1 --nthreads 1 --memory-limit 0 --resources "machine=1")'
            )

    @property
    def count(self) -> int:
        """Number of jobs that run at once, including on workers that joined later; at least 1."""
        return max(1, sum(worker["nthreads"] for worker in self._workers()))

    @property
    def machines(self) -> int:
        """Number of timed jobs that run at once."""
        return sum(int(worker["resources"].get(MACHINE_RESOURCE, 0)) for worker in self._workers())

    def _workers(self) -> Collection[dict[str, Any]]:
        # `Client.scheduler_info` is not used, because it may return a cached answer without workers.
        with suppress(OSError):
            return self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"].values()
        return ()

    @property
    def lost(self) -> bool:
        """Whether the scheduler is lost; Dask leaves the futures of a lost scheduler pending."""
        return self._client.status != "running"

    def submit(self, job: SweepJob) -> Future[JobResult]:
        # With pure=False, a job can run again after its result was lost.
        resources = {MACHINE_RESOURCE: 1} if job.timed else None
        executor: Executor = self._client.get_executor(pure=False, resources=resources)
        return executor.submit(run_job, job)

    def close(self) -> None:
        self._client.close(timeout=5)
