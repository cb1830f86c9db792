"""One folder of packed copies, several loads: each copy is made once, none is taken away, nothing killed stays."""

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
import transformers

from sequoia_core.models import loading
from sequoia_core.models.offload import packed_layers
from sequoia_core.models.offload.packed_layers import packed_copy
from sequoia_core.models.offload.streamed_modules import match_names, without_numbers
from sequoia_core.models.offload.tensor_files import TensorFiles
from sequoia_core.native.llama_x86 import compiled
from tests.core.models.offload.test_offloading import compiled_family, logits
from tests.core.models.offload.test_packed_layers import load, on_disk
from tests.core.test_families import save

pytestmark = [
    pytest.mark.skipif(compiled()[0] is None, reason="llama_x86.c cannot be built here"),
    pytest.mark.skipif(packed_layers.fcntl is None, reason="a system without locks"),
]
WAITING = "waiting for another load, which makes a packed copy"


@pytest.fixture()
def folder(tmp_path) -> str:
    return save(compiled_family("Llama"), tmp_path / "model")


@pytest.fixture()
def go_on() -> threading.Event:
    """Lets the writer go on."""
    return threading.Event()


@pytest.fixture()
def writer(folder, copies, go_on) -> Iterator[Future]:
    """Another load, which has written a part of its copy; locks of files tell threads apart as they do processes."""
    begun = threading.Event()

    def hold(fraction: float, message: str) -> None:
        if message.startswith("packing"):
            begun.set()
            go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(packed_copy, *opened(folder), progress=hold)
        begun.wait(60)
        yield made
        go_on.set()
    made.result().close()


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
def test_of_two_first_loads_the_second_waits_and_without_locks_both_make_a_copy(locks, request, go_on, monkeypatch):
    if not locks:
        refuse_locks(monkeypatch)
    writer, folder, copies = (request.getfixturevalue(name) for name in ("writer", "folder", "copies"))
    said = []

    def hear(fraction: float, message: str) -> None:
        said.append(message)
        if fraction == 1.0 or message == WAITING:
            go_on.set()

    with closing(packed_copy(*opened(folder), progress=hear)) as found:
        assert (set(said) == {WAITING}) == locks and (WAITING in said) == locks
        for copy in (found, writer.result(60)):
            copy.check()
    assert len(list(copies.iterdir())) == 1 and load(folder)[1] == []


def test_a_wait_can_be_cancelled_and_the_writer_does_not_notice(folder, writer, go_on):
    with pytest.raises(KeyboardInterrupt):
        packed_copy(*opened(folder), progress=interrupt)
    go_on.set()
    writer.result(60).check()
    assert load(folder)[1] == []


def test_what_a_killed_writer_left_goes_with_the_next_load_and_what_a_living_one_writes_stays(
    writer, copies, go_on, tmp_path
):
    other = save(compiled_family("Qwen3"), tmp_path / "other")
    (begun,) = copies.iterdir()
    with pytest.raises(KeyboardInterrupt):
        packed_copy(*opened(other), progress=interrupt)
    assert list(copies.iterdir()) == [begun]
    go_on.set()
    writer.result(60)
    for said in (True, False):  # a copy is made, and nothing is to be made
        begun.write_text("as a killed writer leaves it")
        assert bool(load(other)[1]) == said and not begun.exists()
        assert [path.suffix for path in copies.iterdir()] == [".layers"] * 2


def test_a_copy_in_use_is_read_on_after_the_change_of_its_model(folder, copies):
    target = loading.load(on_disk(folder)).target
    found = logits(target)
    (copy,) = copies.glob("*.layers")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found.tolist()
    assert not copy.exists() and len(list(copies.iterdir())) == 1
    assert torch.equal(logits(target), found)
    target.close()


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
