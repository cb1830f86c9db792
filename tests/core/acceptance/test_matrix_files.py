"""Acceptance files of version 3, which store a matrix."""

import json

import numpy as np
import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.matrix_files import acceptance_from_bytes, load_acceptance, matrix_bytes

MATRIX = AcceptanceMatrix(np.array([[0.7], [0.8], [0.0]]), trials=np.array([[100], [70], [0]]), meta={"engine": "vllm"})


def test_matrix_round_trip(tmp_path):
    path = tmp_path / "server.json"
    path.write_bytes(matrix_bytes(MATRIX))
    again = load_acceptance(path)
    assert isinstance(again, AcceptanceMatrix)
    assert np.array_equal(again.probs, MATRIX.probs) and np.array_equal(again.trials, MATRIX.trials)
    assert again.meta == MATRIX.meta


def changed(**fields) -> bytes:
    return json.dumps(json.loads(matrix_bytes(MATRIX)) | fields).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(matrix=[[0.5], [0.5, 0.2]]), "m.json: matrix: found rows of different lengths"),
        (changed(matrix=[[0.5, 0.2], [0.7, 0.7]], trials=None), "m.json: level 2: found a sum"),
        (changed(trials=[[1]]), "m.json: trials: found shape"),
        (changed(version=4), "m.json: version: found"),
    ],
)
def test_invalid_matrices_are_refused(data, said):
    with pytest.raises(ValueError, match=said) as error:
        acceptance_from_bytes(data, "m.json")
    assert str(error.value).count("m.json") == 1 and "\n" not in str(error.value)
    with pytest.raises(ValueError, match="server.json: found acceptance by depth .* expected a vector of all ranks"):
        AcceptanceVector.loads(matrix_bytes(MATRIX), "server.json")
