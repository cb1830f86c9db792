"""One folder of packed copies, several loads: each copy is made once, none is taken away, nothing killed stays."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers

from sequoia_core.models.offload import packed_layers
from sequoia_core.models.offload.packed_layers import packed_copy
from sequoia_core.models.offload.streamed_modules import match_names, without_numbers
from sequoia_core.models.offload.tensor_files import TensorFiles
from sequoia_core.native.llama_x86 import compiled
from tests.core.models.offload.test_offloading import ROOT, compiled_family
from tests.core.models.offload.test_packed_layers import load
from tests.core.test_families import save

pytestmark = [
    pytest.mark.skipif(compiled()[0] is None, reason="llama_x86.c cannot be built here"),
    pytest.mark.skipif(packed_layers.fcntl is None, reason="a system without locks"),
]
WAITING = "waiting for another load, which makes a packed copy"
PROGRAM = """
import json, sys
from pathlib import Path
from sequoia_core.models.offload import packed_layers
from sequoia_core.models.loading import load_pair
from tests.core.models.offload.test_offloading import logits

folder, cache = sys.argv[1:]
packed_layers.cache_folder = lambda: Path(cache)

def say(what):
    print(json.dumps(what), flush=True)
    if not sys.stdin.readline():
        sys.exit()

def tell(_, words):
    if "pack" in words:
        say(words)

options = {"device": "cpu", "dtype": "bfloat16", "offload": "disk", "progress": tell}
target = load_pair(folder, folder, **options).target
while True:
    say(logits(target).tolist())
"""


@pytest.fixture()
def folder(tmp_path) -> str:
    return save(compiled_family("Llama"), tmp_path / "model")


class Process:
    """Another process that loads a model and then runs it again and again; it goes on when it is told to."""

    def __init__(self, folder: str, copies: Path) -> None:
        command = [sys.executable, "-c", PROGRAM, folder, str(copies.parent)]
        self.run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str | list:
        """Return what it is told while it loads, or the logits of a pass; it then waits for `go_on`."""
        return json.loads(self.run.stdout.readline())

    def go_on(self) -> str | list:
        self.run.stdin.write("\n")
        self.run.stdin.flush()
        return self.says()

    def load(self) -> tuple[list, list[str]]:
        """Let it end loading; return its logits and what it was told from now on."""
        said = []
        while isinstance(found := self.go_on(), str):
            said.append(found)
        return found, said

    def end(self) -> None:
        self.run.stdin.close()
        self.run.wait(60)
        self.run.stdout.close()


@pytest.fixture()
def process(copies):
    started = []

    def start(folder: str) -> Process:
        started.append(Process(folder, copies))
        return started[-1]

    yield start
    for one in started:
        one.run.kill()
        one.end()


def half_made(process: Process) -> None:
    """Let a load go on until a part of its copy is written."""
    said = process.says()
    while not said.startswith("packing"):
        said = process.go_on()


def test_of_two_first_loads_the_second_waits_and_takes_what_the_first_made(folder, copies, process):
    first = process(folder)
    half_made(first)
    second = process(folder)
    assert second.says() == WAITING
    found, _ = first.load()
    (copy,) = copies.glob("*.layers")
    made = copy.stat()
    assert second.load() == (found, [])
    assert copy.stat() == made and first.go_on() == second.go_on() == found
    assert load(folder) == (found, [])


def test_a_wait_can_be_cancelled_and_the_writer_does_not_notice(folder, copies, process):
    writer = process(folder)
    half_made(writer)
    with pytest.raises(KeyboardInterrupt):
        packed_copy(*opened(folder), progress=interrupt)
    found, _ = writer.load()
    assert load(folder) == (found, [])


def test_what_a_killed_writer_left_goes_with_the_next_load_and_what_a_living_one_writes_stays(
    folder,
    copies,
    process,
    tmp_path,
):
    writer, other = process(folder), save(compiled_family("Qwen3"), tmp_path / "other")
    half_made(writer)
    (begun,) = copies.iterdir()
    with pytest.raises(KeyboardInterrupt):
        packed_copy(*opened(other), progress=interrupt)
    assert list(copies.iterdir()) == [begun]
    writer.run.kill()
    writer.run.wait(60)
    assert list(copies.iterdir()) == [begun]
    load(other)
    assert {path.suffix for path in copies.iterdir()} == {".layers"} and not begun.exists()
    begun.write_text("as an earlier version left them")
    load(other)  # nothing to be made this time
    assert not begun.exists()


def test_a_copy_in_use_is_read_on_after_the_change_of_its_model(folder, copies, process):
    first = process(folder)
    first.says()
    found, _ = first.load()
    (copy,) = copies.glob("*.layers")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found
    assert not copy.exists() and len(list(copies.iterdir())) == 1
    assert first.go_on() == found


def opened(folder: str) -> tuple:
    """Return what `packed_copy` takes."""
    files = TensorFiles([Path(folder) / "model.safetensors"])
    model = without_numbers(transformers.AutoConfig.from_pretrained(folder), torch.bfloat16)
    return model, files, match_names(model, files)


def interrupt(fraction: float, message: str) -> None:
    assert message == WAITING
    raise KeyboardInterrupt


def refuse_locks(monkeypatch) -> None:
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(packed_layers.fcntl, "flock", refuse)


@pytest.mark.parametrize("locks", [True, False])
def test_threads_wait_for_each_other_too_and_without_locks_both_make_a_copy(locks, folder, copies, monkeypatch):
    if not locks:
        refuse_locks(monkeypatch)
    begun, go_on, made, said = threading.Event(), threading.Event(), [], []

    def hold(fraction: float, message: str) -> None:
        begun.set()
        go_on.wait(60)

    def hear(fraction: float, message: str) -> None:
        said.append(message)
        if fraction == 1.0 or message == WAITING:
            go_on.set()

    first, second = opened(folder), opened(folder)
    writer = threading.Thread(target=lambda: made.append(packed_copy(*first, progress=hold)))
    writer.start()
    begun.wait(60)
    try:
        found = packed_copy(*second, progress=hear)
    finally:
        go_on.set()
        writer.join(60)
    assert (set(said) == {WAITING}) == locks and (WAITING in said) == locks
    for copy in (found, *made):
        copy.check()
        copy.close()
    assert len(made) == 1 and len(list(copies.iterdir())) == 1


def test_where_nothing_can_be_locked_nothing_is_deleted(folder, copies, monkeypatch):
    refuse_locks(monkeypatch)
    found, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    (copies / "tmpabcdefgh").write_text("perhaps being written")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found and load(folder) == (found, [])
    assert copy.exists() and (copies / "tmpabcdefgh").exists() and len(list(copies.glob("*.layers"))) == 2


def test_without_the_lock_file_a_copy_that_is_there_is_used(folder, copies):
    """As in a cache folder that cannot be written."""
    found, _ = load(folder)
    lock = copies.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    assert load(folder) == (found, [])
