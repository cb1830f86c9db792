"""Threads adapt to the load of other processes: the measurement, the number of threads, and unchanged texts."""

import os
import subprocess
import sys
import threading
import time
from collections import namedtuple
from itertools import cycle
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
import torch

from sequoia_core import SamplingConfig, decode, load_pair
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.models import threads
from sequoia_core.models.processor import usable_cores
from sequoia_core.models.threads import OtherLoad, TimedLoad, release_threads, use_free_cores
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import tokens_of

ROOT = Path(__file__).resolve().parents[3]
TASKS = Path("/proc/self/task")
Times = namedtuple("Times", "user nice idle iowait steal guest")


class Machine:
    """A machine with four cores whose clock and counters are set by a test."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        self.own = 5.0
        self.busy = [10.0] * 4
        self.running = 0
        self.looks = 0
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(threads.time, "process_time", lambda: self.own)
        monkeypatch.setattr(threads.psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(threads.psutil, "cpu_count", lambda: 4)
        monkeypatch.setattr(threads, "usable_cores", lambda: [0, 1, 2, 3])
        monkeypatch.setattr(threads, "_running_elsewhere", lambda: self.running)
        monkeypatch.setattr(threads, "_free_cores", threads._FreeCores())
        self.asked = 4
        monkeypatch.setattr(threads.torch, "get_num_threads", lambda: self.asked)
        monkeypatch.setattr(threads.torch, "set_num_threads", lambda count: setattr(self, "asked", count))

    def cpu_times(self, percpu: bool) -> list[Times]:
        self.looks += 1
        # Half of the busy time is "steal"; a guest's time is part of "user".
        return [Times(busy / 2, 0.0, self.now - busy, self.now, busy / 2, busy / 4) for busy in self.busy]

    def spend(self, sec: float, own: float = 0.0, others: float = 0.0, core: int = 0) -> None:
        """Advance the clock while this process and others use the given numbers of cores."""
        self.now += sec
        self.own += own * sec
        self.busy[core] += (own + others) * sec

    def threads(self) -> int:
        with use_free_cores():
            return self.asked


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


def test_the_load_excludes_this_process_and_idle_time(machine):
    load = OtherLoad()
    machine.spend(0.5, own=1.5, others=0.8)
    assert load.since_last_look() == pytest.approx(0.8)
    machine.spend(2.0, own=2.0)
    assert load.since_last_look() == pytest.approx(0.0)
    machine.own += 0.01  # accounted earlier than by the system
    machine.spend(0.1)
    assert load.since_last_look() == 0.0


def test_the_load_covers_only_usable_cores(machine, monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: [1, 9])  # the tenth is switched off
    load = OtherLoad()
    machine.spend(1.0, others=0.9, core=2)
    assert load.since_last_look() == pytest.approx(0.0)
    machine.spend(1.0, others=0.9, core=1)
    assert load.since_last_look() == pytest.approx(0.9)


SLEEPS = "import time; time.sleep(99)"
COMPUTES = "while True: sum(range(9999))"
STARTS_OTHERS = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-Sc', 'sum(range(999_999))'])"


@pytest.fixture
def busy_processes():
    """Two processes on this process's cores: one that computes, and one whose short-lived children compute."""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for code in (COMPUTES, STARTS_OTHERS)]
    watched = [psutil.Process(process.pid) for process in processes]
    try:
        wait_for_use(watched, 0.1)
        yield watched
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_use(processes: list[psutil.Process], sec: float) -> None:
    """Wait until each process and its finished children have used the CPU for `sec` more seconds."""
    before = [sum(process.cpu_times()[:4]) for process in processes]
    while any(sum(now.cpu_times()[:4]) < used + sec for now, used in zip(processes, before, strict=True)):
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="children's times and affinities are Linux's")
def test_busy_processes_and_their_share_are_noticed(busy_processes):
    worked = subprocess.Popen(
        [sys.executable, "-c", f"sum(range(29_999_999)); print(flush=True); {SLEEPS}"], stdout=PIPE
    )
    worked.stdout.readline()
    before = threads._process_sec()
    load = TimedLoad()
    wait_for_use(busy_processes, 0.2)
    record = load.record()
    after = threads._process_sec()
    worked.kill()
    worked.communicate()
    cores = usable_cores()
    assert min(len(cores), 2) / len(cores) * 0.7 < record["share"] <= 1.0
    assert all(after[process.pid] - before[process.pid] > 0.15 for process in busy_processes)
    still_working = sum(sec > before.get(process, 0.0) for process, sec in after.items())
    assert 2 <= record["processes"] <= still_working and after[worked.pid] == before[worked.pid] > 0.1
    assert os.getpid() not in after


@pytest.mark.skipif(len(usable_cores()) < 2 or sys.platform != "linux", reason="needs two cores to tell apart")
def test_processes_on_other_cores_are_not_counted(busy_processes):
    first, second = usable_cores()[:2]
    for process in busy_processes:
        process.cpu_affinity([first])
    assert all(threads._may_use(process.pid, [first]) for process in busy_processes)
    assert not any(threads._may_use(process.pid, [second]) for process in busy_processes)
    assert threads._may_use(2**22 + 1, [first])  # has ended


def test_an_idle_machine_is_not_called_busy(machine, monkeypatch):
    monkeypatch.setattr(threads, "_process_sec", dict)
    load = TimedLoad()
    machine.spend(2.0, own=3.6, others=0.1)
    assert load.record() == {"share": 0.025, "processes": 0}  # of four cores


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("others", "expected"), [(0.0, 4), (0.34, 4), (0.36, 3), (1.0, 3), (1.34, 3), (2.7, 1), (4.0, 1)]
)
def test_a_core_used_by_others_for_more_than_a_third_is_not_free(machine, others, expected):
    machine.threads()
    machine.spend(0.2, own=1.0, others=others)
    assert machine.threads() == expected


def test_threads_return_when_others_finish_and_torchs_setting_is_restored(machine):
    machine.threads()
    machine.spend(0.2, others=3.0)
    assert (machine.threads(), machine.asked) == (1, 4)
    machine.spend(0.2)
    assert (machine.threads(), machine.asked) == (4, 4)
    machine.asked = 2  # by the user
    assert (machine.threads(), machine.asked) == (2, 2)


def test_the_load_is_measured_at_most_ten_times_a_second(machine):
    machine.threads()
    looks = machine.looks
    for _ in range(50):
        machine.spend(0.03)
        machine.threads()
    assert machine.looks - looks == 12  # every fourth time: after 0.12 s


def test_a_run_after_a_pause_starts_from_the_current_load(machine):
    machine.running = 3
    assert machine.threads() == 1
    machine.spend(0.2)
    assert machine.threads() == 4
    machine.running = 1
    machine.spend(30.0, others=3.0)  # too long ago to be relevant
    assert machine.threads() == 3
    machine.running = 9
    machine.spend(30.0)
    assert machine.threads() == 1


def test_a_small_thread_count_is_unchanged(machine):
    machine.asked = 1
    machine.running = 0
    looks = machine.looks
    assert machine.threads() == 1 and machine.looks == looks
    machine.asked = 2
    machine.running = 1
    assert machine.threads() == 2


def test_concurrent_runs_restore_the_original_number_of_threads(machine):
    machine.running = 3
    first = use_free_cores()
    second = use_free_cores()
    first.__enter__()
    assert machine.asked == 1
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert machine.asked == 4


def test_running_threads_are_read_from_proc_if_it_exists(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert threads._running_elsewhere() == 0
    for number, state in enumerate("RSRS"):
        task = tmp_path / f"proc/self/task/{number}"
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a (b) {state} 1 2 3\n")
    for running, expected in ((5, 3), (1, 0)):
        (tmp_path / "proc/stat").write_text(f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n")
        assert threads._running_elsewhere() == expected


def leaves_threads(job, expected: int) -> bool:
    """Return whether a job in a new thread soon leaves `expected` further threads, while that thread lives."""
    done = threading.Event()
    stop = threading.Event()
    before = set(TASKS.iterdir())

    def work() -> None:
        job()
        done.set()
        stop.wait()

    worker = threading.Thread(target=work)
    worker.start()
    done.wait()
    try:
        for _ in range(100):
            if len(set(TASKS.iterdir()) - before) - 1 == expected:
                return True
            time.sleep(0.05)  # a finished thread remains listed for a moment
        return False
    finally:
        stop.set()
        worker.join()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_released_threads_do_not_outlive_their_job():
    matrix = torch.ones(500, 500)

    def multiply() -> None:
        torch.set_num_threads(3)
        matrix @ matrix

    try:
        assert leaves_threads(multiply, 2)
        assert leaves_threads(release_threads()(multiply), 0)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("tree", [ROOT_ONLY, k_ary_tree(2, 3)], ids=["plain", "tree"])
def test_changing_the_number_of_threads_does_not_change_the_text(tree, monkeypatch):
    pair = load_pair(device="cpu")
    prompt = list(range(20, 60))

    def text(counts: list[int]) -> list[int]:
        turns = cycle(counts)
        chooser = threads._FreeCores()
        chooser._look = lambda: setattr(chooser, "_free", next(turns))
        monkeypatch.setattr(threads, "_free_cores", chooser)
        seed = torch.Generator().manual_seed(3)
        options = {"tree": tree, "sampling": SamplingConfig(0.8), "max_new_tokens": 5, "generator": seed}
        return tokens_of(decode(prompt, pair, **options))

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert text([1]) == text([2]) == text([1, 2, 3])
    finally:
        torch.set_num_threads(before)
