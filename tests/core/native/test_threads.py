"""Threads follow the load of others: what is measured, how many threads that gives, and that texts stay the same."""

import json
import subprocess
import sys
import threading
import time
from collections import namedtuple
from itertools import cycle
from pathlib import Path

import pytest
import torch

from sequoia_core import SamplingConfig, decode, load_pair
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.design.plain_trees import k_ary_tree
from sequoia_core.native import threads
from sequoia_core.native.threads import OtherLoad, release_threads, use_free_cores

ROOT = Path(__file__).resolve().parents[3]
TASKS = Path("/proc/self/task")
Times = namedtuple("Times", "user nice idle iowait steal guest")


class Machine:
    """A machine of four cores whose clock and counters a test sets."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.own, self.busy, self.running = 100.0, 5.0, [10.0] * 4, 0
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
        # half of what is busy is "steal"; a guest's time is in "user" too
        return [Times(busy / 2, 0.0, self.now - busy, self.now, busy / 2, busy / 4) for busy in self.busy]

    def spend(self, sec: float, own: float = 0.0, others: float = 0.0, core: int = 0) -> None:
        """Let time pass; how many cores this process and others keep busy meanwhile."""
        self.now += sec
        self.own += own * sec
        self.busy[core] += (own + others) * sec

    def threads(self) -> int:
        with use_free_cores():
            return self.asked


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


def test_the_load_of_others_leaves_out_our_own_and_idle_time(machine):
    load = OtherLoad()
    machine.spend(0.5, own=1.5, others=0.8)
    assert load.since_last_look() == pytest.approx(0.8)
    machine.spend(2.0, own=2.0)
    assert load.since_last_look() == pytest.approx(0.0)
    machine.own += 0.01  # counted before the system counts it
    machine.spend(0.1)
    assert load.since_last_look() == 0.0


def test_only_cores_that_this_process_may_use_are_looked_at(machine, monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: [1, 9])  # the tenth is switched off
    load = OtherLoad()
    machine.spend(1.0, others=0.9, core=2)
    assert load.since_last_look() == pytest.approx(0.0)
    machine.spend(1.0, others=0.9, core=1)
    assert load.since_last_look() == pytest.approx(0.9)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("others", "expected"), [(0.0, 4), (0.34, 4), (0.36, 3), (1.0, 3), (1.34, 3), (2.7, 1), (4.0, 1)]
)
def test_a_core_that_others_use_for_more_than_a_third_is_left_to_them(machine, others, expected):
    machine.threads()
    machine.spend(0.2, own=1.0, others=others)
    assert machine.threads() == expected


def test_threads_come_back_when_others_are_done_and_torch_keeps_its_own_number(machine):
    machine.threads()
    machine.spend(0.2, others=3.0)
    assert (machine.threads(), machine.asked) == (1, 4)
    machine.spend(0.2)
    assert (machine.threads(), machine.asked) == (4, 4)
    machine.asked = 2  # by the user
    assert (machine.threads(), machine.asked) == (2, 2)


def test_the_load_is_looked_at_ten_times_a_second(machine):
    machine.threads()
    looks = machine.looks
    for _ in range(50):
        machine.spend(0.03)
        machine.threads()
    assert machine.looks - looks == 12  # every fourth time: after 0.12 s


def test_a_run_after_a_pause_begins_with_what_runs_at_that_moment(machine):
    machine.running = 3
    assert machine.threads() == 1
    machine.spend(0.2)
    assert machine.threads() == 4
    machine.running = 1
    machine.spend(30.0, others=3.0)  # over, as far as anybody knows
    assert machine.threads() == 3
    machine.running = 9
    machine.spend(30.0)
    assert machine.threads() == 1


def test_one_thread_or_fewer_than_are_free_stay_as_they_are(machine):
    machine.asked, machine.running = 1, 0
    looks = machine.looks
    assert machine.threads() == 1 and machine.looks == looks
    machine.asked, machine.running = 2, 1
    assert machine.threads() == 2


def test_runs_side_by_side_restore_the_number_that_was_there_before_both(machine):
    machine.running = 3
    first, second = use_free_cores(), use_free_cores()
    first.__enter__()
    assert machine.asked == 1
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert machine.asked == 4


def test_the_number_is_restored_after_an_error(machine):
    machine.running = 3
    with pytest.raises(OSError, match="lost"), use_free_cores():
        raise OSError("lost")
    assert machine.asked == 4


def test_what_runs_elsewhere_includes_a_busy_process_and_not_our_own_threads():
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    own = threading.Thread(target=spin)
    own.start()
    busy = subprocess.Popen([sys.executable, "-c", "print('on', flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        busy.stdout.readline()
        load = OtherLoad()
        seen = max(threads._running_elsewhere() for _ in range(20))
        time.sleep(0.5)
        assert seen >= 1 and load.since_last_look() > 0.1
    finally:
        stop.set()
        busy.kill()
        busy.communicate()
        own.join()


def test_what_runs_at_this_moment_is_read_from_proc_and_nothing_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert threads._running_elsewhere() == 0
    for number, state in enumerate("RSRS"):
        task = tmp_path / f"proc/self/task/{number}"
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a (b) {state} 1 2 3\n")
    for running, expected in ((5, 3), (1, 0)):
        (tmp_path / "proc/stat").write_text(f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n")
        assert threads._running_elsewhere() == expected


def leaves_behind(job, expected: int) -> bool:
    """Whether a job in a thread of its own soon leaves so many new threads behind, while that thread lives."""
    done, stop, before = threading.Event(), threading.Event(), set(TASKS.iterdir())

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
            time.sleep(0.05)  # a thread that has ended is listed for a moment
        return False
    finally:
        stop.set()
        worker.join()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_thread_that_is_done_keeps_no_others_waiting():
    matrix = torch.ones(500, 500)

    def multiply() -> None:
        torch.set_num_threads(3)
        matrix @ matrix

    try:
        assert leaves_behind(multiply, 2)
        assert leaves_behind(release_threads()(multiply), 0)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("tree", [ROOT_ONLY, k_ary_tree(2, 3)], ids=["plain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.sample(2)
def test_a_text_is_the_same_when_the_number_of_threads_changes_on_the_way(tree, temperature, dtype, monkeypatch):
    pair, prompt, sampling = load_pair(device="cpu", dtype=dtype), list(range(20, 60)), SamplingConfig(temperature)

    def text(counts: list[int]) -> list[int]:
        turns = cycle(counts)
        chooser = threads._FreeCores()
        chooser._look = lambda: setattr(chooser, "_free", next(turns))
        monkeypatch.setattr(threads, "_free_cores", chooser)
        seed = torch.Generator().manual_seed(3)
        steps = decode(prompt, pair, tree=tree, sampling=sampling, max_new_tokens=5, generator=seed)
        return [token for step in steps for token in step.new_tokens]

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert text([1]) == text([2]) == text([1, 2, 3])
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_the_benchmark_of_busy_machines_runs():
    command = [sys.executable, "benchmarks/busy.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["found"]["demo pair, api"]["found"]
    assert {"plain | free | alone", "tree | free | 1 yes"} <= set(found)
    assert all(speed > 0 and sec > 0 for speed, sec in found.values())
