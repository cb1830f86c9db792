"""Loading pairs: hanging downloads block nothing, loads never overlap, and memory is freed."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from sequoia_core.files.faults import Cancelled
from tests.app.conftest import ROOT, wait_for
from ui.session.pair_loading import PairLoader


class Pair:
    """An object whose release can be observed."""

    def __init__(self, spec: str) -> None:
        self.spec, self.itself = spec, self  # a cycle, as in models, which only the garbage collector frees


class Loads:
    """A fetch and a load that wait for permission, and a log of events."""

    def __init__(self) -> None:
        self.fetched: dict[str, threading.Event] = {}
        self.read: dict[str, threading.Event] = {}
        self.events: list[str] = []
        self.pairs: list[weakref.ref] = []
        self.alive_at_start: list[int] = []
        self.loader = PairLoader(self.fetch, self.load)

    def may(self, kind: dict[str, threading.Event], spec: str) -> threading.Event:
        return kind.setdefault(spec, threading.Event())

    def fetch(self, spec: str, tell: Callable[[float, str], None]) -> None:
        self.events.append(f"fetch {spec}")
        assert self.may(self.fetched, spec).wait(60)

    def load(self, spec: str, tell: Callable[[float, str], None]) -> Pair:
        self.alive_at_start.append(sum(pair() is not None for pair in self.pairs))
        self.events.append(f"load {spec}")
        tell(0.5, f"half of {spec}")
        assert self.may(self.read, spec).wait(60)
        self.events.append(f"loaded {spec}")
        if spec.startswith("bad"):
            raise KeyboardInterrupt(spec)
        pair = Pair(spec)
        self.pairs.append(weakref.ref(pair))
        return pair

    def go(self, *specs: str) -> None:
        for spec in specs:
            self.may(self.fetched, spec).set()
            self.may(self.read, spec).set()

    def asked(self, spec: str, cancel: threading.Event | None = None) -> tuple[threading.Thread, list]:
        """Request a pair on another thread; the result is appended to the list."""
        found: list = []

        def ask() -> None:
            try:
                found.append(self.loader.get(spec, cancel or threading.Event()))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread, found

    def abandoned(self, spec: str, *, in_step: str) -> None:
        """Request a pair and cancel while it is being fetched or loaded."""
        cancel = threading.Event()
        thread, found = self.asked(spec, cancel)
        wait_for(lambda: f"{in_step} {spec}" in self.events)
        cancel.set()
        thread.join(60)
        assert isinstance(found[0], Cancelled) and "cancelled" in str(found[0])


@pytest.fixture
def loads() -> Iterator[Loads]:
    loads = Loads()
    yield loads
    loads.go(*loads.fetched, *loads.read)


def loaders() -> int:
    return sum(thread.name == "loader" for thread in threading.enumerate())


def test_a_pair_is_loaded_once_after_the_old_one_is_freed(loads: Loads) -> None:
    loads.go("a", "b")
    never = threading.Event()
    first = loads.loader.get("a", never)
    assert loads.loader.get("a", never) is first and loads.loader.spec == "a"
    del first
    assert loads.loader.get("b", never).spec == "b" and loads.loader.spec == "b"
    assert loads.events == ["fetch a", "load a", "loaded a", "fetch b", "load b", "loaded b"]
    loads.loader.unload()
    assert loads.loader.spec is None and [pair() for pair in loads.pairs] == [None, None]


def test_a_hanging_download_blocks_no_other_load(loads: Loads) -> None:
    loads.abandoned("hangs", in_step="fetch")
    loads.go("other")
    assert loads.loader.get("other", threading.Event()).spec == "other"
    loads.go("hangs")
    wait_for(lambda: not loaders())
    assert loads.loader.spec == "other" and "load hangs" not in loads.events


def test_an_abandoned_load_ends_and_is_freed_before_the_next_begins(loads: Loads) -> None:
    loads.may(loads.fetched, "slow").set()
    loads.abandoned("slow", in_step="load")
    loads.go("next")
    thread, found = loads.asked("next")
    wait_for(lambda: "fetch next" in loads.events)
    time.sleep(0.2)
    assert "load next" not in loads.events and not found
    loads.go("slow")
    thread.join(60)
    assert found[0].spec == "next" and loads.loader.spec == "next"
    assert loads.events[-4:] == ["fetch next", "loaded slow", "load next", "loaded next"]
    assert loads.alive_at_start == [0, 0]


def test_an_abandoned_load_is_resumed_on_request(loads: Loads) -> None:
    loads.may(loads.fetched, "slow").set()
    loads.abandoned("slow", in_step="load")
    thread, found = loads.asked("slow")
    time.sleep(0.2)
    loads.go("slow")
    thread.join(60)
    assert found[0].spec == "slow" and loads.events == ["fetch slow", "load slow", "loaded slow"]


def test_an_error_reaches_the_caller_and_nothing_stays_loaded(loads: Loads) -> None:
    loads.go("bad", "good")
    loads.loader.get("good", threading.Event())
    with pytest.raises(KeyboardInterrupt):
        loads.loader.get("bad", threading.Event())
    assert loads.loader.spec is None
    assert loads.loader.get("good", threading.Event()).spec == "good"


HANGING = """
import json, sys, threading, time
from ui.jobs import engine_queue
from sequoia_core.models.pair_spec import PairSpec

engine = engine_queue.EngineQueue()
def wait(condition, seconds):
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)
hub = PairSpec("someone/model", "someone/draft")
import huggingface_hub  # not during the time below
job = engine.submit("hub", lambda context: context.pair(hub))
wait(lambda: job.state == "running", 60)
time.sleep(1.0)
assert job.state == "running", (job.state, job.error)
job.cancel()
began = time.monotonic()
wait(lambda: not job.active, 60)
cancelled = time.monotonic() - began
demo = engine.submit("demo", lambda context: context.pair(PairSpec()).target.name)
wait(lambda: not demo.active, 200)
hanging = sum(thread.name == "loader" for thread in threading.enumerate())
print(json.dumps([job.state, cancelled, demo.state, demo.result, hanging]), flush=True)
import os; os._exit(0)
"""


@pytest.mark.slow
def test_an_unresponsive_hub_blocks_one_job_until_it_is_cancelled(tmp_path) -> None:
    """A real download from a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_ETAG_TIMEOUT": "600",
            "HF_HUB_DOWNLOAD_TIMEOUT": "600",
        }
        done = subprocess.run(
            [sys.executable, "-c", HANGING], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
        )
    assert done.returncode == 0, done.stderr
    state, cancelled, demo_state, demo, hanging = json.loads(done.stdout.splitlines()[-1])
    assert (state, demo_state, demo, hanging) == ("cancelled", "done", "demo target", 1)
    assert cancelled < 10  # the download itself would wait for 10 minutes


def test_two_threads_may_import_transformers_at_once() -> None:
    program = """
import threading
from ui.session import model_pairs

def use():
    model_pairs.import_transformers()
    from transformers import AutoConfig
    names.append(AutoConfig.__name__)

names = []
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(names)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "['AutoConfig', 'AutoConfig', 'AutoConfig']", run.stderr
