"""Packed copies: written once, rewritten after they or the model's files change, and never left incomplete.

Several loads may share the folder: no copy in use is lost, and leftovers of killed loads are deleted.
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
from sequoia_core.models.pair_spec import PairSpec
from sequoia_extras.cpu_kernels.llama_x86 import llama_kernels
from sequoia_extras.offloading import packed_content, packed_layers
from sequoia_extras.offloading.packed_layers import packed_copy
from sequoia_extras.offloading.streamed_modules import empty_model, match_tensors
from sequoia_extras.offloading.tensor_files import TensorFiles
from tests.core.models.test_llama_torch import logits
from tests.core.test_families import save
from tests.extras.offloading.test_offloading import compiled_family

pytestmark = [
    pytest.mark.skipif(llama_kernels()[0] is None, reason="llama_x86.c cannot be built here"),
    pytest.mark.skipif(packed_layers.fcntl is None, reason="a system without locks"),
]
WAITING = "waiting for another load to write a packed copy"


@pytest.fixture()
def folder(tmp_path) -> str:
    return save(compiled_family("Llama"), tmp_path / "model")


def on_disk(folder: str) -> PairSpec:
    return PairSpec(folder, folder, "cpu", "bfloat16", "disk")


def load(folder: str) -> tuple[list, list[tuple[float, str]]]:
    """Load the pair with its target on disk; return its logits and the progress of packing."""
    messages = []
    target = loading.load(
        on_disk(folder), progress=lambda *message: messages.append(message) if "pack" in message[1] else None
    ).target
    found = logits(target).tolist()
    target.close()
    return found, messages


def test_a_copy_is_written_once_after_its_size_was_reported(folder, copies):
    first, messages = load(folder)
    (copy,) = copies.glob("*.layers")
    assert messages[0][1] == f"writing a packed copy of {copy.stat().st_size / 1e6:,.0f} MB (only once)"
    assert messages[-1][1].endswith("MB written")
    assert load(folder) == (first, [])


def damage(copy: Path, position: int, content: bytes) -> None:
    """Overwrite a part of a copy without changing its modification time."""
    before = copy.stat()
    with copy.open("r+b") as file:
        file.seek(position)
        file.write(content)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))


PARTS = ["first layer", "last layer", "head", "embedding", "checksums"]


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("part", [*PARTS, "cut"])
def test_damaged_copies_are_detected_and_rewritten(part, folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    if part == "cut":
        os.truncate(copy, 4096)
    else:
        position = packed_content.packed_layout(compiled_family("Llama")).bounds[PARTS.index(part)]
        damage(copy, position, bytes([copy.read_bytes()[position] ^ 1]))
        with pytest.raises(ValueError, match=r"^.*: found part .* damaged, .* load the model again"):
            load(folder)
    found, messages = load(folder)
    assert found == first and "writing a packed copy" in messages[0][1]
    assert load(folder) == (first, [])


def test_obsolete_copies_are_deleted(folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    other = copies / "0123456789ab-0123456789ab0123456789ab.layers"  # of another model
    for path in (other, copies / "of-an-earlier-version.json", copies / "0123456789abcdef01234567.layers"):
        path.write_bytes(b"layers")
    assert load(folder) == (first, [])
    assert {*copies.iterdir()} == {copy, other}


def test_a_full_disk_is_refused_with_the_numbers(folder, copies, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1_000_000))
    with pytest.raises(ValueError, match=r"found 1 MB free, expected \d+ MB for a packed copy"):
        load(folder)
    assert list(copies.iterdir()) == []


def test_a_cancelled_copy_leaves_no_file(folder, copies):
    def stop(fraction, message):
        if message.startswith("packing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loading.load(on_disk(folder), progress=stop)
    assert list(copies.iterdir()) == []


def test_an_unwritable_cache_folder_is_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: tmp_path / "file")
    with pytest.raises(ValueError, match="file/packed-layers: cannot store a packed copy"):
        load(folder)


@pytest.fixture()
def go_on() -> threading.Event:
    """Set to let the writer continue."""
    return threading.Event()


@pytest.fixture()
def writer(folder, copies, go_on) -> Iterator[Future]:
    """Another load that has written a part of its copy; file locks work between threads as between processes."""
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
    """Return the arguments of `packed_copy`."""
    files = TensorFiles([Path(folder) / "model.safetensors"])
    model = empty_model(transformers.AutoConfig.from_pretrained(folder), torch.bfloat16)
    return model, files, match_tensors(model, files)


def interrupt(fraction: float, message: str) -> None:
    assert message == WAITING
    raise KeyboardInterrupt


def test_concurrent_loads_write_one_copy(writer, folder, copies, go_on):
    messages = []

    def hear(fraction: float, message: str) -> None:
        messages.append(message)
        go_on.set()

    with closing(packed_copy(*opened(folder), progress=hear)) as found:
        assert set(messages) == {WAITING}
        for copy in (found, writer.result(60)):
            copy.check()
    assert len(list(copies.iterdir())) == 1 and load(folder)[1] == []


def test_leftovers_are_deleted_but_not_while_a_writer_runs(writer, copies, go_on, tmp_path):
    other = save(compiled_family("Qwen3"), tmp_path / "other")
    (begun,) = copies.iterdir()
    with pytest.raises(KeyboardInterrupt):
        packed_copy(*opened(other), progress=interrupt)
    assert list(copies.iterdir()) == [begun]
    go_on.set()
    writer.result(60)
    for writes in (True, False):
        begun.write_text("as a killed writer leaves it")
        assert bool(load(other)[1]) == writes and not begun.exists()
        assert [path.suffix for path in copies.iterdir()] == [".layers"] * 2


def test_a_deleted_copy_stays_readable_while_in_use(folder, copies):
    target = loading.load(on_disk(folder)).target
    found = logits(target)
    (copy,) = copies.glob("*.layers")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found.tolist()
    assert not copy.exists() and len(list(copies.iterdir())) == 1
    assert torch.equal(logits(target), found)
    target.close()


def test_nothing_is_deleted_without_locks(folder, copies, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(packed_layers.fcntl, "flock", refuse)
    found, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    (copies / "tmpabcdefgh").write_text("perhaps being written")
    os.utime(Path(folder) / "model.safetensors", ns=(1, 1))
    assert load(folder)[0] == found and load(folder) == (found, [])
    assert copy.exists() and (copies / "tmpabcdefgh").exists() and len(list(copies.glob("*.layers"))) == 2
