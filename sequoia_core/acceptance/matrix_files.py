"""Acceptance files: version 3 of the native JSON contains a matrix by depth; all others contain a vector."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ..files.file_model import FileModel
from ..files.file_types import file_type
from ..files.json_models import prefix_errors, validate_model
from ..files.safe_files import json_bytes, read_bytes, read_json
from .conditions import MAX_RANKS
from .matrix import AcceptanceMatrix
from .vector import AcceptanceVector
from .vector_files import MATRIX_VERSION, MAX_BYTES
from .vector_schema import Count


class MatrixFile(FileModel):
    format: Literal["sequoia-acceptance"]
    version: int
    matrix: list[list[float]] = Field(min_length=1, max_length=MAX_RANKS)
    trials: list[list[Count]] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)


def load_acceptance(path: str | Path, entries: str | None = None) -> AcceptanceVector | AcceptanceMatrix:
    """Read a vector or a matrix from a file; for `entries`, see `read_vector`."""
    return acceptance_from_bytes(read_bytes(path, limit=MAX_BYTES), str(path), entries)


def acceptance_from_bytes(data: bytes, name: str, entries: str | None = None) -> AcceptanceVector | AcceptanceMatrix:
    """Parse a vector or a matrix from a file's content; `name` appears in error messages."""
    if file_type(data) == "JSON" and len(data) <= MAX_BYTES and entries is None:
        with prefix_errors(name):
            content = read_json(data)
            if isinstance(content, dict) and content.get("version") == MATRIX_VERSION:
                return _matrix_from_json(content)
    return AcceptanceVector.loads(data, name, entries)


def _matrix_from_json(content: dict[str, Any]) -> AcceptanceMatrix:
    read = validate_model(MatrixFile, content)
    if len(set(map(len, read.matrix)) | set(map(len, read.trials or []))) > 1:
        raise ValueError("matrix: found rows of different lengths, expected one number per rank in each row")
    return AcceptanceMatrix(np.array(read.matrix), None if read.trials is None else np.array(read.trials), read.meta)


def matrix_bytes(matrix: AcceptanceMatrix) -> bytes:
    fields = {
        "matrix": matrix.probs.tolist(),
        "trials": None if matrix.trials is None else matrix.trials.tolist(),
        "meta": matrix.meta,
    }
    return json_bytes({"format": "sequoia-acceptance", "version": MATRIX_VERSION, **fields})
