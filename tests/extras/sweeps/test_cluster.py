"""Sweeps on a real Dask cluster: a lost scheduler loses no row, and timing needs a worker per machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_extras.sweeps.executors import DaskWorkers
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.results import Results
from sequoia_extras.sweeps.run import run_sweep
from tests.sweep_plans import untimed, write_plan

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


class Cluster:
    """A scheduler and workers, each a process without a nanny, so that a killed one stays dead."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.folder = folder
        self.processes: list[subprocess.Popen] = []

    def start(self, workers: int) -> None:
        options = ["--host", "127.0.0.1", "--no-dashboard"]
        self._start("scheduler", "--port", str(self.port), "--no-show", *options)
        for _ in range(workers):
            self._start("worker", self.address, "--nthreads", "1", "--no-nanny", *options)

    def _start(self, role: str, *options: str) -> None:
        log = (self.folder / f"{role}-{len(self.processes)}.log").open("wb")
        command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def test_a_lost_scheduler_ends_the_sweep_and_the_next_run_continues_it(cluster, serial, tmp_path):
    cluster.start(workers=2)
    plan = read_plan(write_plan(tmp_path))
    results = Results(tmp_path / "out")
    workers = DaskWorkers(cluster.address)

    def kill_scheduler(state) -> None:
        if state.done == 3:
            cluster.processes[0].kill()

    with pytest.raises(ValueError, match="lost the connection to the scheduler"):
        run_sweep(plan, results, workers, progress=kill_scheduler)
    workers.close()
    cluster.stop()
    cluster.start(workers=2)
    workers = DaskWorkers(cluster.address)
    state = run_sweep(plan, results, workers)
    workers.close()
    assert 3 <= state.skipped < 24 and state.done == 24 - state.skipped and not state.faults
    assert untimed(tmp_path / "out").equals(serial)


def test_timing_needs_a_worker_with_the_machine_resource(cluster):
    cluster.start(workers=1)
    with pytest.raises(ValueError, match="found no worker with the resource machine"):
        DaskWorkers(cluster.address, timed=True)
