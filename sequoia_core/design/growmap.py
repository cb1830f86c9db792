"""The reference implementation's growmap: six entries, five of which describe the same tree. n = nodes with root."""

import io
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..files.file_model import FileModel
from ..files.json_models import checked
from .tree import TokenTree

MAX_GROWMAP_SIZE = 2048  # nodes: a growmap holds an n x n mask


def growmap(tree: TokenTree) -> dict[str, Any]:
    """Return the reference implementation's six entries; `mask` int64 [n, n] and `depth` int64 [n] as arrays."""
    if tree.size > MAX_GROWMAP_SIZE:
        raise ValueError(
            f"found {tree.size} nodes, expected at most {MAX_GROWMAP_SIZE} in a format that holds an n x n mask"
        )
    counts = tree.child_counts
    return {
        "roots": [level.tolist() for level in tree.levels],
        "branches": [counts[level].tolist() for level in tree.levels],
        "Successors": [list(tree.children(node)) for node in range(tree.size)],
        "mask": tree.ancestor_mask.astype(np.int64),
        "depth": tree.depths.astype(np.int64),
        "size": tree.size,
    }


def plain_growmap(tree: TokenTree) -> dict[str, Any]:
    """Return the same six entries with lists in place of arrays."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in growmap(tree).items()}


def growmap_bytes(tree: TokenTree) -> bytes:
    """Return the file that the reference implementation reads."""
    fields = growmap(tree)
    import torch

    tensors = {key: torch.from_numpy(value) for key, value in fields.items() if isinstance(value, np.ndarray)}
    stream = io.BytesIO()
    torch.save(fields | tensors, stream)
    return stream.getvalue()


def growmap_entries(content: Any) -> dict[str, Any]:
    """Return a loaded growmap with tensors as lists, after bounding what those lists may hold."""
    if not isinstance(content, dict):
        raise ValueError(f"found a {type(content).__name__}, expected a growmap: a dictionary with {_all_keys()}")
    import torch

    entries = {}
    for key in _Growmap.model_fields:
        value = content.get(key)
        if isinstance(value, torch.Tensor):
            if value.numel() > MAX_GROWMAP_SIZE**2:
                raise ValueError(f"{key}: found shape {tuple(value.shape)}, expected at most {MAX_GROWMAP_SIZE} nodes")
            whole = value.to(torch.int64)
            if value.is_complex() or not bool((whole == value).all()):
                raise ValueError(f"{key}: found numbers that are not whole, expected node numbers, depths or 0 and 1")
            value = whole.tolist()
        # A pickle can refer to one short list a million times, so entries are counted before they are read.
        elif isinstance(value, list) and (
            len(value) > MAX_GROWMAP_SIZE
            or sum(len(row) for row in value if isinstance(row, list)) > MAX_GROWMAP_SIZE**2
        ):
            raise ValueError(f"{key}: found too many entries, expected at most {MAX_GROWMAP_SIZE} nodes")
        if key in content:
            entries[key] = value
    return entries


class _Growmap(FileModel):
    roots: list[list[int]]
    branches: list[list[int]]
    Successors: list[list[int]]
    mask: list[list[int]]
    depth: list[int]
    size: Annotated[int, Field(ge=1, le=MAX_GROWMAP_SIZE)]


def tree_from_growmap(content: Mapping[str, Any]) -> TokenTree:
    """Read the reference implementation's entries and check that they agree."""
    try:
        read = checked(_Growmap, content)
    except ValueError as error:
        raise ValueError(f"{error} (a growmap has {_all_keys()})") from error
    n = read.size
    for key in ("Successors", "mask", "depth"):
        if len(getattr(read, key)) != n:
            raise ValueError(f"{key}: found {len(getattr(read, key))} entries, expected one for each of {n} nodes")
    parents = [-1]
    for node, children in enumerate(read.Successors):
        for child in children:
            if child != len(parents) or child >= n:
                raise ValueError(
                    f"node {node}: found successor {child} where {len(parents)} was due, expected nodes below {n} "
                    "numbered breadth-first with siblings side by side"
                )
            parents.append(node)
    if len(parents) != n:
        raise ValueError(f"node {len(parents)}: found it in no list of Successors, expected {n} nodes")
    tree = TokenTree(np.array(parents))
    own = growmap(tree)
    for node, (found, expected) in enumerate(zip(read.depth, own["depth"], strict=True)):
        if found != expected:
            raise ValueError(f"node {node}: found depth {found}, expected {expected} from Successors")
    for node, row in enumerate(read.mask):
        if not np.array_equal(row, own["mask"][node]):
            raise ValueError(f"node {node}: found a mask row that is not its ancestors and itself, expected those")
    for key in ("roots", "branches"):
        levels, due = getattr(read, key), own[key]
        for level in range(len(due)):
            shown = levels[level] if level < len(levels) else None
            if shown != due[level]:
                raise ValueError(f"{key}: found {shortened(shown)} at level {level}, expected {shortened(due[level])}")
        if len(levels) > len(due):
            raise ValueError(f"{key}: found {len(levels)} levels, expected {len(due)}")
    return tree


def _all_keys() -> str:
    return ", ".join(_Growmap.model_fields)


def shortened(value: Any) -> str:
    """Return a value as a message shows it, cut to 60 characters."""
    text = repr(value[:12] if isinstance(value, list) else value)
    return text if len(text) <= 60 else text[:57] + "..."
