"""Functions that take too much, in the child process where they may: it ends, and the next question is answered."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from sequoia_core.files.bounded_process import BoundedProcess, LimitError


def act(request: bytes):
    """Do what a test asks; runs in the child."""
    action, value = json.loads(request)
    if action == "answer":
        return value
    if action == "letters":
        return "x" * value
    if action == "print":
        print("no answer", flush=True)
        os.write(1, b"nor this")
        return value
    if action == "refuse":
        raise ValueError(value)
    if action == "exit":
        os._exit(value)
    if action == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == "loop":
        while True:
            pass
    if action == "compute":
        return len(str(9**9**value))  # one call into C: nothing in Python could interrupt it
    return os.getpid()


@pytest.fixture
def child():
    with BoundedProcess(__name__, "act", memory_bytes=64 << 20, seconds=20, answer_bytes=1000) as child:
        yield child


def ask(child, action, value=None):
    return child.ask(json.dumps([action, value]).encode())


def test_answers_come_from_one_other_process(child):
    pid = ask(child, "pid")
    assert pid != os.getpid()
    for value in (None, 3, [1, "ü \ud800", {"a": 0.5}], "x" * 900):
        assert ask(child, "answer", value) == value
    with pytest.raises(ValueError, match="^no such thing$"):
        ask(child, "refuse", "no such thing")
    assert ask(child, "print", 7) == 7  # what is printed does not get between
    assert ask(child, "pid") == pid


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_memory_is_limited(child):
    with pytest.raises(LimitError, match="^takes more than 64 MiB of memory$"):
        ask(child, "letters", 100 << 20)
    assert ask(child, "answer", 1) == 1


def test_answers_are_limited(child):
    with pytest.raises(LimitError, match="^answers with 10,014 bytes, expected at most 1,000$"):
        ask(child, "letters", 10_000)
    assert ask(child, "letters", 3) == "xxx"  # not the rest of the answer before


def test_time_is_limited(child):
    pid = ask(child, "pid")
    child.seconds = 0.2
    with pytest.raises(LimitError, match="^takes more than 0.2 s$"):
        ask(child, "compute", 9)
    child.seconds = 20
    assert ask(child, "pid") != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_dies_is_replaced(child):
    for action, code in (("exit", "0"), ("crash", "-11")):
        with pytest.raises(LimitError, match=f"breaks down the process that runs it .exit code {code}"):
            ask(child, action, 0)
        assert ask(child, "answer", 1) == 1
    os.kill(ask(child, "pid"), signal.SIGKILL)  # between two questions, as by the system for want of memory
    child._child.wait()
    assert ask(child, "answer", 2) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_child_that_nobody_waits_for_is_ended_by_the_system(child):
    child.command[-1] = "0"  # seconds: then two of the processor
    pid = ask(child, "pid")
    threading.Thread(target=lambda: pytest.raises(LimitError, ask, child, "loop")).start()
    while os.path.exists(f"/proc/{pid}"):  # nobody kills it for 20 s, pytest itself ends the test
        time.sleep(0.05)


def test_threads_get_their_own_answers(child):
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: ask(child, "answer", i)})) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: i for i in range(8)}
