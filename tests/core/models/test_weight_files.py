"""Weight files that contradict their header or index are refused, naming file, tensor and size."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sequoia_core.models.model_files import locate
from sequoia_core.models.weight_files import read_tensors, stored_tensors

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def folder_of(folder, first=("a",), second=("b",)):
    """Save two shards with tensors of four numbers, and an index of a and b."""
    for name, tensors in ((FIRST, first), (SECOND, second)):
        save_file({key: torch.arange(4.0) for key in tensors}, folder / name)
    index = {"weight_map": {"a": FIRST, "b": SECOND}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return locate(folder)


def headed(header):
    return len(header).to_bytes(8, "little") + header


def test_shards_are_read_as_one_file(tmp_path):
    source = folder_of(tmp_path)
    assert stored_tensors(source) == {"a": ((4,), "F32"), "b": ((4,), "F32")}
    assert torch.equal(read_tensors(source, ["b"])["b"], torch.arange(4.0))
    assert stored_tensors(locate(tmp_path.parent)) == {}


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda data: data[:-5], "75 bytes, expected 80 according to its header: the file is truncated$"),
        (lambda data: data + bytes(3), "83 bytes, expected 80 according to its header: data was appended$"),
        (lambda data: b"", "an empty file, expected a complete safetensors file$"),
        (lambda data: POINTER, "a Git LFS pointer, not the file itself, expected"),
        (lambda data: data.replace(b'"dtype"', b'"dtyqe"'), "a damaged file"),
        (lambda data: headed(b'{"a": [1, 2]}'), r"a damaged file \(a tensor without data_offsets in its header\), exp"),
    ],
    ids=["cut", "longer", "empty", "pointer", "header", "a list"],
)
def test_an_incomplete_file_is_reported_with_its_size(damage, found, tmp_path):
    source = folder_of(tmp_path)
    (tmp_path / SECOND).write_bytes(damage((tmp_path / SECOND).read_bytes()))
    with pytest.raises(ValueError, match=f"{SECOND}: found {found}") as error:
        stored_tensors(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("second", "found"),
    [(["c"], f"{SECOND}: b is missing"), (["b", "a"], f"{SECOND}: found a, which {FIRST}")],
)
def test_tensors_must_match_the_index_and_be_unique(second, found, tmp_path):
    source = folder_of(tmp_path, second=second)
    with pytest.raises(ValueError, match=found):
        stored_tensors(source)


@pytest.mark.parametrize(
    ("shard", "found"),
    [
        ("../x.safetensors", "'../x.safetensors', expected the name of a file in the same folder$"),
        ("a\\b.safetensors", r"'a\\\\b.safetensors', expected the name of a file"),
        (3, "{'a': 3}, expected the file name of each tensor"),
        (SECOND, f"{SECOND} in the index and model.safetensors in the folder, expected one set of weights$"),
    ],
)
def test_an_index_must_name_the_only_files_of_its_folder(shard, found, tmp_path):
    source = folder_of(tmp_path)
    (tmp_path / FIRST).rename(tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ValueError, match=f"model.safetensors.index.json: (weight_map: )?found {found}"):
        stored_tensors(source)
    path.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert stored_tensors(source) == {"a": ((4,), "F32")}


def test_a_missing_shard_is_named(tmp_path):
    source = folder_of(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(ValueError, match=f"the file {SECOND} is missing"):
        stored_tensors(source)
