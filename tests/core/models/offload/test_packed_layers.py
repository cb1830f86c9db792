"""Packed copies: made once, made again when they or the model's files are no longer what they were, never half."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from sequoia_core.models import loading
from sequoia_core.models.offload import packed_layers
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.native.llama_x86 import compiled
from tests.core.models.offload.test_offloading import compiled_family, logits
from tests.core.test_families import save

pytestmark = pytest.mark.skipif(compiled()[0] is None, reason="llama_x86.c cannot be built here")


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
    assert said[-1][1].endswith("MB made") and said == sorted(said, key=lambda told: told[0])
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said)
    assert load(folder) == (first, [])


def test_a_copy_that_was_cut_is_made_again(folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    os.truncate(copy, 4096)
    found, said = load(folder)
    assert found == first and said


def damage(copy: Path, place: int, content: bytes) -> None:
    """Write something else into a copy, at the same time as far as its file says."""
    before = copy.stat()
    with copy.open("r+b") as file:
        file.seek(place)
        file.write(content)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES = {"not finite": b"\xff" * 4096, "zeros": bytes(4096), "one bit": None}
PARTS = ["first layer", "last layer", "head", "embedding", "checksums"]


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
def test_damage_that_left_size_and_time_is_found_and_the_copy_made_again(part, kind, folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    parts = packed_layers.parts_of(compiled_family("Llama"))
    place = parts.bounds[PARTS.index(part)]
    damage(copy, place, DAMAGES[kind] or bytes([copy.read_bytes()[place] ^ 1]))
    found, said = load(folder)
    assert found == first and "making a packed copy" in said[0][1]
    assert load(folder) == (first, [])


def test_damage_that_comes_back_is_named_with_the_copy(folder, copies):
    made = []

    def spoil(fraction: float, message: str) -> None:
        if message.endswith("made"):
            (copy,) = copies.glob("*.layers")
            damage(copy, 0, b"other numbers")
            made.append(copy)

    with pytest.raises(ValueError, match=rf"^{copies}/[\w-]+\.layers: found a packed copy whose part 1 was damaged"):
        loading.load(on_disk(folder), progress=spoil)
    assert len(made) == 2


@pytest.mark.parametrize("lost", ["its name", "its name to another"])
def test_a_copy_that_lost_its_name_is_read_on(lost, folder, copies):
    target = loading.load(on_disk(folder)).target
    first = logits(target)
    (copy,) = copies.glob("*.layers")
    if lost == "its name":
        copy.unlink()
    else:
        (copies / "another").write_bytes(bytes(copy.stat().st_size))
        (copies / "another").replace(copy)
    for _ in range(2):
        assert logits(target).equal(first)
    target.close()


def test_copies_of_no_use_are_deleted(folder, copies):
    first, _ = load(folder)
    (copy,) = copies.glob("*.layers")
    other = copies / "0123456789ab-0123456789ab0123456789ab.layers"  # of another model
    for path in (other, copies / "of-an-earlier-version.json", copies / "0123456789abcdef01234567.layers"):
        path.write_bytes(b"layers")
    assert load(folder) == (first, [])
    assert {*copies.iterdir()} == {copy, other}


def test_a_model_that_was_trained_on_gets_another_copy_and_the_old_one_goes(folder, copies):
    first, _ = load(folder)
    (old,) = copies.glob("*.layers")
    model = compiled_family("Llama")
    for weights in model.parameters():
        weights.data.mul_(1.5)
    save(model, folder)
    second, said = load(folder)
    assert second != first and said
    assert not old.exists() and len(list(copies.iterdir())) == 1


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
