"""Read the tensors in a model's weight files, and detect incomplete files by their size."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_NAME

from ..files.file_types import HEAD_BYTES, describe
from .model_files import Source, explain_load_errors

StoredTensors = dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, dtype)
COMPLETE_FILE = "a complete safetensors file"


def weight_files(source: Source, file: str = SAFE_WEIGHTS_NAME) -> dict[Path, list[str]]:
    """Return a model's weight files, each with the tensors listed by the index; empty if there are none.

    `file` is the name of the weight file if there is only one.
    """
    index = source.read_object(f"{file}.index.json")
    whole = source.find(file)
    if index is None:
        return {} if whole is None else {whole: []}
    where = f"{source.name}/{file}.index.json"
    weight_map = index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(shard, str) for shard in weight_map.values())
    ):
        raise ValueError(f"{where}: weight_map: found {str(weight_map)[:60]}, expected the file name of each tensor")
    shards = sorted(set(weight_map.values()))
    outside = next((shard for shard in shards if not Path(shard).suffix or set(shard) & set("/\\")), None)
    if outside is not None:
        raise ValueError(f"{where}: found {outside[:60]!r}, expected the name of a file in the same folder")
    if whole is not None and shards != [file]:
        raise ValueError(
            f"{where}: found {shards[0]} in the index and {file} in the folder, expected one set of weights"
        )
    files: dict[Path, list[str]] = {}
    for shard in shards:
        path = source.find(shard)
        if path is None:
            raise ValueError(f"{where}: the file {shard} is missing, expected all files that the index lists")
        files[path] = [tensor for tensor, file in weight_map.items() if file == shard]
    return files


def stored_tensors(source: Source) -> StoredTensors:
    """Return the shape and dtype of every tensor in a model's safetensors files, after checking their sizes."""
    stored: StoredTensors = {}
    files: dict[str, str] = {}
    for path, named in weight_files(source).items():
        where = f"{source.name}/{path.name}"
        tensors = _headers(where, path)
        absent = next((tensor for tensor in named if tensor not in tensors), None)
        if absent is not None:
            raise ValueError(f"{where}: {absent} is missing, expected every tensor that the index lists for this file")
        twice = next((tensor for tensor in tensors if tensor in stored), None)
        if twice is not None:
            raise ValueError(f"{where}: found {twice}, which {files[twice]} also contains, expected each tensor once")
        files |= dict.fromkeys(tensors, path.name)
        stored |= tensors
    return stored


def read_tensors(source: Source, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return selected tensors of a model, given and keyed by their stored names."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(source):
        with safe_open(path, framework="pt") as file:
            tensors |= {key: file.get_tensor(key) for key in file.keys() if key in names}
    return tensors


def _headers(where: str, path: Path) -> StoredTensors:
    with explain_load_errors(where, COMPLETE_FILE, "a damaged file"):
        try:
            with safe_open(path, framework="pt") as file:
                parts = {key: file.get_slice(key) for key in file.keys()}
                return {key: (tuple(part.get_shape()), part.get_dtype()) for key, part in parts.items()}
        except SafetensorError:
            _check_length(where, path)
            raise


def _check_length(where: str, path: Path) -> None:
    """Raise ValueError for a file of the wrong type, or if its length differs from the one in its header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        whole = 8 + int.from_bytes(head[:8], "little")
        if head[8:9] != b"{":
            raise ValueError(f"{where}: found {describe(head)}, expected {COMPLETE_FILE}")
        if whole <= size:
            file.seek(8)
            header = json.loads(file.read(whole - 8))
            whole += max((_end(fields) for name, fields in header.items() if name != "__metadata__"), default=0)
    if size != whole:
        how = "the file is truncated" if size < whole else "data was appended"
        raise ValueError(f"{where}: found {size:,} bytes, expected {whole:,} according to its header: {how}")


def _end(fields: Any) -> int:
    """Return the end of a tensor as an offset from the end of the header."""
    offsets = fields.get("data_offsets") if isinstance(fields, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or type(offsets[1]) is not int:
        raise ValueError("a tensor without data_offsets in its header")
    return offsets[1]
