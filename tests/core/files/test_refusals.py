"""All readers refuse the same damage: junk, other files, truncated or changed files, wrong types."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.matrix_files import acceptance_from_bytes, matrix_bytes
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.prompt_files import prompts_from_bytes
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.tree import TokenTree
from sequoia_core.trees.tree_files import tree_from_bytes, tree_to_bytes
from tests.hostile_files import (
    JUNK,
    WRONG,
    Payload,
    checked_line,
    damaged,
    npy_bytes,
    refusal,
    rewritten_archive,
    torch_bytes,
    with_pickle,
    zip_bomb,
)
from ui.runs.run_files import run_from_bytes

ASSETS = Path(__file__).parents[3] / "assets"
PROBS = [0.6, 0.2, 0.05]
VECTOR = {
    "format": "sequoia-acceptance", "version": 1, "probs": [0.5, 0.2], "trials": 3, "prompt_sums": [[1.0, 0.5]],
    "prompt_trials": [3], "meta": {"source": "a test"}, "note": "n",
}  # fmt: skip


def vector_json(**fields):
    return json.dumps({"format": "sequoia-acceptance", "version": 1, "probs": [0.5]} | fields).encode()


def npy_header(old: str = "", new: str = "") -> bytes:
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }".replace(old, new) if old else new
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(24)


MATRIX = AcceptanceMatrix(np.array([[0.7], [0.8]]), trials=np.array([[100], [70]]), meta={"engine": "vllm"})
TREE = TokenTree(np.array([-1, 0, 0, 1]))
vector = AcceptanceVector.loads
profile = HardwareProfile.loads
VALID_FILES = {  # file name -> (reader, content)
    "v.json": (vector, json.dumps(VECTOR).encode()),
    "v.csv": (vector, b"0.6\n0.2\n"),
    "v.npy": (vector, npy_bytes(np.array(PROBS))),
    "v.safetensors": (vector, save_safetensors({"p": torch.tensor(PROBS)})),
    "v.pt": (vector, torch_bytes(torch.tensor(PROBS))),
    "matrix.json": (acceptance_from_bytes, matrix_bytes(MATRIX)),
    "profile.json": (profile, (ASSETS / "profiles" / "cpu-2core.json").read_bytes()),
    "tree.json": (tree_from_bytes, tree_to_bytes(TREE, "native")),
    "umbrella.json": (tree_from_bytes, tree_to_bytes(TREE, "umbrella")),
    "growmap.pt": (tree_from_bytes, tree_to_bytes(TREE, "growmap")),
    "run.jsonl": (run_from_bytes, (ASSETS / "runs" / "recorded.jsonl").read_bytes()),
    "prompts.jsonl": (prompts_from_bytes, b'{"prompt": "x"}'),
    "prompts.json": (prompts_from_bytes, b'[{"prompt": "x"}]'),
}
VALID_VALUES = {"meta": {"a": 1}, "note": "x"}  # values of `WRONG` that these fields accept


HUGE = b"J" + (10**9).to_bytes(4, "little")  # a pickled integer
TENSOR = torch_bytes(torch.tensor(PROBS))
INVALID_VECTORS = [  # file name, content, part of the message
    ("v.json", vector_json(calibration="eJw="), "packed"),
    ("v.json", vector_json(prompt_sums=[[1], []], prompt_trials=[2, 2]), "prompt_sums"),
    ("v.json", b"<html>0.6</html>", "found HTML or XML, expected a 1-D real vector"),
    ("v.csv", b"\x89PNG\0\0", "found binary data, expected a 1-D real vector"),
    ("v.csv", b"1,0.6\n3,0.2", "missing or repeated"),
    ("v.csv", b"rank,prob,prob\n1,0.6,0.5\n2,0.2,0.1\n", "twice"),
    ("v.csv", b"0.5\n" * 400_000, "bytes"),
    ("v.npy", npy_header(new="(" * 5000), "expected"),
    ("v.npy", npy_header("'<f8'", "('f8', (1000000000,))"), "expected"),
    ("v.npy", npy_header("'<f8'", "'O'"), "expected"),
    ("v.safetensors", save_safetensors({"a": torch.zeros(2), "b": torch.zeros(2)}), "expected"),
    ("v.pt", torch_bytes(torch.tensor(PROBS).to_sparse()), "a 1-D real vector"),
    ("v.pt", torch_bytes({"p": torch.tensor(PROBS)}), "a 1-D real vector"),
    ("v.pt", torch_bytes(torch.zeros(1).expand(10**9)), "1,000,000,000"),
    ("v.pt", rewritten_archive(TENSOR, lambda name, content: content.replace(b"K\x03t", HUGE + b"t")), "expected"),
    ("v.pt", with_pickle(b"\x80\x02" + b"]" * 7_000_000 + b"."), "expected"),
]


@pytest.mark.sample(len(INVALID_VECTORS))
@pytest.mark.parametrize(("name", "data", "word"), INVALID_VECTORS)
def test_invalid_vectors_are_refused(name, data, word):
    refusal(vector, data, name, word)


def test_pickled_code_does_not_run(tmp_path):
    payload = Payload(tmp_path / "ran")
    for name, value in (("v.pt", payload), ("v.pt", {"p": torch.tensor(PROBS), "x": payload}), ("growmap.pt", payload)):
        refusal(VALID_FILES[name][0], torch_bytes(value), name, "contains more than tensors")
    refusal(vector, npy_bytes(np.array([payload], dtype=object), allow_pickle=True), "v.npy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.sample(60)
@pytest.mark.parametrize("name", VALID_FILES)
@pytest.mark.parametrize("junk", JUNK)
def test_every_reader_refuses_junk(name, junk):
    if junk == "another program's" and name.startswith("prompts"):
        return  # the only text column holds the prompts
    refusal(VALID_FILES[name][0], JUNK[junk], name)


@pytest.mark.sample(len(VALID_FILES))
@pytest.mark.parametrize("name", VALID_FILES)
def test_truncated_files_are_refused(name):
    read, data = VALID_FILES[name]
    assert read(data, name) is not None
    if name in ("v.csv", "run.jsonl"):  # shorter files are valid too
        return
    for stop in range(0, len(data) - 2, max(7, len(data) // 150)):
        refusal(read, data[:stop], name)


@pytest.mark.parametrize("name", VALID_FILES)
def test_changed_bytes_raise_only_value_errors(name):
    read, data = VALID_FILES[name]
    for changed in damaged(data, max(5, len(data) // 300)):
        try:
            read(changed, name)
        except ValueError as error:
            checked_line(str(error), name)


def test_zip_bombs_are_refused():
    data = zip_bomb(zipfile.ZIP_DEFLATED)
    assert len(data) < 300_000
    for name in VALID_FILES:
        refusal(VALID_FILES[name][0], data, name, *["compressed"] * name.endswith(".pt"))


@pytest.mark.sample(len(VECTOR))
@pytest.mark.parametrize("field", VECTOR)
def test_wrong_types_are_refused_in_every_field(field):
    for value in WRONG:
        changed = json.dumps(VECTOR | {field: value}).encode()
        if VALID_VALUES.get(field) == value:
            assert vector(changed, "v.json") is not None
        else:
            refusal(vector, changed, "v.json")
