"""Sweeps on a real cluster, a scheduler and two workers: what is lost costs no row, and timing has its own machine."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sequoia_core.sweeps.executors import DaskWorkers
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results
from sequoia_core.sweeps.run import run_sweep
from tests.sweep_plans import untimed, write_plan

pytest.importorskip("distributed")


class Cluster:
    """A scheduler and workers, each a process without a nanny: what is killed stays away."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address, self.folder, self.processes = f"tcp://127.0.0.1:{self.port}", folder, []
        self.scheduler = self.start_scheduler()

    def start_scheduler(self) -> subprocess.Popen:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-show"]
        return self._start("scheduler", *options)

    def start_worker(self, *options: str) -> subprocess.Popen:
        folder = ["--local-directory", str(self.folder)]
        return self._start(
            "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", *folder,
            *options,
        )  # fmt: skip

    def _start(self, kind: str, *options: str) -> subprocess.Popen:
        log = (self.folder / f"{kind}-{len(self.processes)}.log").open("wb")
        root = str(Path(__file__).parents[3])
        environment = os.environ | {"PYTHONPATH": root}
        process = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + kind, *options], stdout=log, stderr=log, env=environment
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_scheduler_that_is_lost_and_started_again_costs_nothing(cluster, serial, tmp_path):
    for _ in range(2):
        cluster.start_worker()
    plan, results = read_plan(write_plan(tmp_path)), Results(tmp_path / "out")
    workers, lost_after = DaskWorkers(cluster.address), []

    def start_again() -> None:
        cluster.scheduler.kill()
        cluster.scheduler.wait()
        time.sleep(2)
        cluster.scheduler = cluster.start_scheduler()
        for _ in range(2):
            cluster.start_worker()

    def progress(state) -> None:
        if state.done >= 3 and not lost_after:
            lost_after.append(state.done)
            threading.Thread(target=start_again).start()

    state = run_sweep(plan, results, workers, progress=progress)
    workers.close()
    assert lost_after[0] < state.done == state.jobs == 24 and not state.faults
    assert untimed(tmp_path / "out").equals(serial)


@pytest.mark.slow
def test_timing_needs_a_worker_with_a_machine_to_itself(cluster):
    cluster.start_worker()
    with pytest.raises(ValueError, match="found no worker with the resource machine"):
        DaskWorkers(cluster.address, timed=True)
