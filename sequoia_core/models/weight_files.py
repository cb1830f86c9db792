"""Which tensors a model's weight files hold; a file that is not whole is named with its bytes."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_NAME

from ..files.file_kinds import HEAD_BYTES, describe
from .model_files import Source, explained

Stored = dict[str, tuple[tuple[int, ...], str]]  # (shape, dtype) of each tensor by its name
WHOLE = "a complete safetensors file"  # what is expected


def weight_files(source: Source, file: str = SAFE_WEIGHTS_NAME) -> dict[Path, list[str]]:
    """Return a model's weight files, each with the tensors that an index says are in it; empty where there are none.

    `file` is the name of the weights where they are in one file.
    """
    index, whole = source.read_object(f"{file}.index.json"), source.find(file)
    if index is None:
        return {} if whole is None else {whole: []}
    where, weight_map = f"{source.name}/{file}.index.json", index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(shard, str) for shard in weight_map.values())
    ):
        raise ValueError(f"{where}: weight_map: found {str(weight_map)[:60]}, expected the file that holds each tensor")
    shards = sorted(set(weight_map.values()))
    outside = next((shard for shard in shards if not Path(shard).suffix or set(shard) & set("/\\")), None)
    if outside is not None:
        raise ValueError(f"{where}: found {outside[:60]!r}, expected the name of a file in the same folder")
    if whole is not None and shards != [file]:
        raise ValueError(f"{where}: found {shards[0]} in it and {file} in the folder, expected one set of weights")
    files: dict[Path, list[str]] = {}
    for shard in shards:
        path = source.find(shard)
        if path is None:
            raise ValueError(f"{where}: found no file {shard}, which it names, expected all of its files")
        files[path] = [tensor for tensor, file in weight_map.items() if file == shard]
    return files


def stored_tensors(source: Source) -> Stored:
    """Return shape and dtype of every tensor in a model's safetensors files, whose sizes are checked."""
    stored: Stored = {}
    files: dict[str, str] = {}
    for path, named in weight_files(source).items():
        where = f"{source.name}/{path.name}"
        held = _headers(where, path)
        absent = next((tensor for tensor in named if tensor not in held), None)
        if absent is not None:
            raise ValueError(f"{where}: found no {absent}, expected every tensor that the index says is in this file")
        twice = next((tensor for tensor in held if tensor in stored), None)
        if twice is not None:
            raise ValueError(f"{where}: found {twice}, which is in {files[twice]} too, expected each tensor once")
        files |= dict.fromkeys(held, path.name)
        stored |= held
    return stored


def read_tensors(source: Source, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return some of a model's tensors by their stored names."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(source):
        with safe_open(path, framework="pt") as file:
            tensors |= {key: file.get_tensor(key) for key in file.keys() if key in names}
    return tensors


def _headers(where: str, path: Path) -> Stored:
    with explained(where, WHOLE, "a damaged file"):
        try:
            with safe_open(path, framework="pt") as file:
                parts = {key: file.get_slice(key) for key in file.keys()}
                return {key: (tuple(part.get_shape()), part.get_dtype()) for key, part in parts.items()}
        except SafetensorError:
            _check_length(where, path)
            raise


def _check_length(where: str, path: Path) -> None:
    """Refuse a file of another kind, or of another length than its header describes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        whole = 8 + int.from_bytes(head[:8], "little")
        if head[8:9] != b"{":
            raise ValueError(f"{where}: found {describe(head)}, expected {WHOLE}")
        if whole <= size:
            file.seek(8)
            header = json.loads(file.read(whole - 8))
            whole += max((_end(fields) for name, fields in header.items() if name != "__metadata__"), default=0)
    if size != whole:
        how = "cut short" if size < whole else "something was appended"
        raise ValueError(f"{where}: found {size:,} bytes, expected {whole:,} by its header: {how}")


def _end(fields: Any) -> int:
    """Return where a tensor ends among the bytes after a header."""
    offsets = fields.get("data_offsets") if isinstance(fields, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or type(offsets[1]) is not int:
        raise ValueError("a tensor without data_offsets in its header")
    return offsets[1]
