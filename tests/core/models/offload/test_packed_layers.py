"""Packed copies: made once, made again when they or the model's files are no longer what they were, never half.

Several loads may share the folder: no copy is taken away, and nothing that a killed load left stays.
"""

import errno
import os
import shutil
import threading
from collections import namedtuple
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
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.native.llama_x86 import compiled
from tests.core.models.offload.test_offloading import compiled_family, logits
from tests.core.test_families import save

pytestmark = [
    pytest.mark.skipif(compiled()[0] is None, reason="llama_x86.c cannot be built here"),
    pytest.mark.skipif(packed_layers.fcntl is None, reason="a system without locks"),
]
WAITING = "waiting for another load, which makes a packed copy"


@pytest.fixture()
def folder(tmp_path) -> str:
    return save(compiled_family("Llama"), tmp_path / "model")


def on_disk(folder: str) -> PairSpec:
    return PairSpec(folder, folder, "cpu", "bfloat16", "disk")


def load(folder: str) -> tuple[list, list[tuple[float, str]]]:
    """Load the pair with its target on disk; return its logits and what it said meanwhile of packing."""
    said = []
    target = loading.load(
        on_disk(folder), progress=lambda *told: said.append(told) if "pack" in told[1] else None
    ).target
    found = logits(target).tolist()
    target.close()
    return found, said


def test_a_copy_is_made_once_its_size_said_first(folder, copies):
    first, said = load(folder)
    (copy,) = copies.glob("*.layers")
    assert said[0][1] == f"making a packed copy of {copy.stat().st_size / 1e6:,.0f} MB, once"
    assert said[-1][1].endswith("MB made")
    assert load(folder) == (first, [])


def damage(copy: Path, place: int, content: bytes) -> None:
    """Write something else into a copy, at the same time as far as its file says."""
    before = copy.stat()
    with copy.open("r+b") as file:
        file.seek(place)
        file.write(content)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))


PARTS = ["first layer", "last layer", "head", "embedding", "checksums"]


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("part", [*PARTS, "cut"])
def test_damage_that_left_the_time_is_found_and_the_copy_made_again(part, folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    if part == "cut":
        os.truncate(copy, 4096)
    else:
        place = packed_layers.parts_of(compiled_family("Llama")).bounds[PARTS.index(part)]
        damage(copy, place, bytes([copy.read_bytes()[place] ^ 1]))
    found, said = load(folder)
    assert found == first and "making a packed copy" in said[0][1]
    assert load(folder) == (first, [])


def test_copies_of_no_use_are_deleted(folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    other = copies / "0123456789ab-0123456789ab0123456789ab.layers"  # of another model
    for path in (other, copies / "of-an-earlier-version.json", copies / "0123456789abcdef01234567.layers"):
        path.write_bytes(b"layers")
    assert load(folder) == (first, [])
    assert {*copies.iterdir()} == {copy, other}


def test_without_room_on_the_disk_it_is_refused_with_the_numbers(folder, copies, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1_000_000))
    with pytest.raises(ValueError, match=r"found 1 MB free, expected \d+ MB for a packed copy"):
        load(folder)
    assert list(copies.iterdir()) == []


def test_a_cancelled_copy_leaves_nothing(folder, copies):
    def stop(fraction, message):
        if message.startswith("packing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loading.load(on_disk(folder), progress=stop)
    assert list(copies.iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_named(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: tmp_path / "file")
    with pytest.raises(ValueError, match="file/packed-layers: cannot keep a packed copy"):
        load(folder)


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


def test_of_two_first_loads_the_second_waits(writer, folder, copies, go_on):
    said = []

    def hear(fraction: float, message: str) -> None:
        said.append(message)
        go_on.set()

    with closing(packed_copy(*opened(folder), progress=hear)) as found:
        assert set(said) == {WAITING}
        for copy in (found, writer.result(60)):
            copy.check()
    assert len(list(copies.iterdir())) == 1 and load(folder)[1] == []


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
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(packed_layers.fcntl, "flock", refuse)
    found, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    (copies / "tmpabcdefgh").write_text("perhaps being written")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found and load(folder) == (found, [])
    assert copy.exists() and (copies / "tmpabcdefgh").exists() and len(list(copies.glob("*.layers"))) == 2
