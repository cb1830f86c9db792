"""Files of acceptance of either kind: a matrix by depth in version 3 of the native JSON, else a vector of all ranks."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ..files.file_kinds import kind_of
from ..files.file_model import FileModel
from ..files.json_models import checked, naming
from ..files.safe_files import json_bytes, read_bytes, read_json
from .acceptance import AcceptanceVector
from .acceptance_files import MATRIX_VERSION, MAX_BYTES
from .acceptance_matrix import AcceptanceMatrix
from .acceptance_schema import Count
from .conditions import MAX_RANKS


class MatrixFile(FileModel):
    format: Literal["sequoia-acceptance"]
    version: int
    matrix: list[list[float]] = Field(min_length=1, max_length=MAX_RANKS)
    trials: list[list[Count]] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)


def load_acceptance(path: str | Path, entries: str | None = None) -> AcceptanceVector | AcceptanceMatrix:
    """Read a vector or a matrix from a file; `entries` as in `read_vector`."""
    return acceptance_from_bytes(read_bytes(path, limit=MAX_BYTES), str(path), entries)


def acceptance_from_bytes(data: bytes, name: str, entries: str | None = None) -> AcceptanceVector | AcceptanceMatrix:
    """Read a vector or a matrix from a file's content; `name` is for the error message."""
    content: Any = None
    if kind_of(data) == "JSON" and len(data) <= MAX_BYTES and entries is None:
        with naming(name):
            content = read_json(data)
    if not isinstance(content, dict) or content.get("version") != MATRIX_VERSION:
        return AcceptanceVector.loads(data, name, entries)
    with naming(name):
        read = checked(MatrixFile, content)
        if len(set(map(len, read.matrix)) | set(map(len, read.trials or []))) > 1:
            raise ValueError("matrix: found rows of several lengths, expected one number for each rank in each")
        trials = None if read.trials is None else np.array(read.trials)
        return AcceptanceMatrix(np.array(read.matrix), trials, read.meta)


def matrix_bytes(matrix: AcceptanceMatrix) -> bytes:
    fields = {
        "matrix": matrix.probs.tolist(),
        "trials": None if matrix.trials is None else matrix.trials.tolist(),
        "meta": matrix.meta,
    }
    return json_bytes({"format": "sequoia-acceptance", "version": MATRIX_VERSION, **fields})
