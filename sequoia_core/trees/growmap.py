"""The growmap of Sequoia's reference implementation: six entries that describe one tree. n = number of nodes."""

import io
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..files.file_model import FileModel
from ..files.json_models import validate_model
from .tree import TokenTree

MAX_GROWMAP_SIZE = 2048  # largest number of nodes, because a growmap contains an n x n mask


def growmap(tree: TokenTree) -> dict[str, Any]:
    """Return a tree's growmap; only `mask`, int64 [n, n], and `depth`, int64 [n], are arrays rather than lists."""
    if tree.size > MAX_GROWMAP_SIZE:
        raise ValueError(
            f"found {tree.size} nodes, expected at most {MAX_GROWMAP_SIZE} because this format contains an n x n mask"
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
    """Return a tree's growmap with lists instead of arrays."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in growmap(tree).items()}


def growmap_bytes(tree: TokenTree) -> bytes:
    """Return the growmap as a `.pt` file."""
    import torch

    fields = growmap(tree)
    tensors = {key: torch.from_numpy(value) for key, value in fields.items() if isinstance(value, np.ndarray)}
    stream = io.BytesIO()
    torch.save(fields | tensors, stream)
    return stream.getvalue()


def growmap_from_torch(content: Any) -> dict[str, Any]:
    """Return the entries of a loaded `.pt` growmap, with its tensors converted to lists."""
    if not isinstance(content, dict):
        raise ValueError(f"found a {type(content).__name__}, expected a growmap: a dictionary with {_all_keys()}")
    import torch

    entries = {key: content[key] for key in _Growmap.model_fields if key in content}
    for key, value in entries.items():
        if isinstance(value, torch.Tensor):
            # A broadcast tensor of a few bytes can have any number of entries, so check its shape before copying it.
            if value.numel() > MAX_GROWMAP_SIZE**2:
                raise ValueError(f"{key}: found shape {tuple(value.shape)}, expected at most {MAX_GROWMAP_SIZE} nodes")
            entries[key] = (value.int() if value.dtype == torch.bool else value).tolist()
    return entries


NodeList = Annotated[list[int], Field(max_length=MAX_GROWMAP_SIZE)]
NodeLists = Annotated[list[NodeList], Field(max_length=MAX_GROWMAP_SIZE)]


class _Growmap(FileModel):
    roots: NodeLists
    branches: NodeLists
    Successors: NodeLists
    mask: NodeLists
    depth: NodeList
    size: Annotated[int, Field(ge=1, le=MAX_GROWMAP_SIZE)]


def tree_from_growmap(content: Mapping[str, Any]) -> TokenTree:
    """Build the tree from `Successors`, and check that the other entries describe the same tree."""
    try:
        read = validate_model(_Growmap, content)
    except ValueError as error:
        raise ValueError(f"{error} (a growmap has {_all_keys()})") from error
    tree = TokenTree(np.array(_parents_from_successors(read.Successors, read.size)))
    for key, expected in plain_growmap(tree).items():
        found = getattr(read, key)
        if found == expected:
            continue
        if len(found) != len(expected):
            raise ValueError(f"{key}: found {len(found)} entries, expected {len(expected)} according to Successors")
        index = next(index for index, entry in enumerate(found) if entry != expected[index])
        where = "level" if key in ("roots", "branches") else "node"
        raise ValueError(
            f"{key}: found {shortened(found[index])} at {where} {index}, expected {shortened(expected[index])} "
            "according to Successors"
        )
    return tree


def _parents_from_successors(successors: list[list[int]], size: int) -> list[int]:
    """Return the parent of each node; -1 for the root."""
    if len(successors) != size:
        raise ValueError(f"Successors: found {len(successors)} entries, expected one for each of the {size} nodes")
    parents = [-1]
    for node, children in enumerate(successors):
        for child in children:
            if child != len(parents) or child >= size:
                raise ValueError(
                    f"node {node}: found successor {child}, expected {len(parents)}: the {size} nodes must be numbered "
                    "breadth-first with siblings next to each other"
                )
            parents.append(node)
    if len(parents) != size:
        raise ValueError(f"node {len(parents)}: missing from Successors, expected {size} nodes")
    return parents


def _all_keys() -> str:
    return ", ".join(_Growmap.model_fields)


def shortened(value: Any) -> str:
    """Return a value's `repr` for an error message, truncated to 60 characters."""
    text = repr(value[:12] if isinstance(value, list) else value)
    return text if len(text) <= 60 else text[:57] + "..."
