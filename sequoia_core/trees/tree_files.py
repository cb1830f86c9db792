"""Tree files: the native JSON format, and the formats of tools that decode with a fixed tree. n = number of nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ..files.file_model import FileModel
from ..files.file_types import decode_text, file_type
from ..files.json_models import prefix_errors, validate_model
from ..files.safe_files import MAX_BYTES, json_bytes, load_torch, read_bytes, read_json, write_atomic
from .growmap import growmap_bytes, growmap_from_torch, plain_growmap, shortened, tree_from_growmap
from .optimal import expected_tokens, node_scores
from .tree import MAX_TREE_SIZE, TokenTree

if TYPE_CHECKING:
    from ..acceptance.vector import AcceptanceVector

# Maps each format to its file extension. `choices` is Medusa's medusa_choices and EAGLE-1's tree_choices.
TREE_FORMATS = {"native": ".json", "growmap": ".pt", "umbrella": ".json", "choices": ".json", "vllm": ".txt"}
# Write-only formats for graph tools.
GRAPH_FORMATS = {"graphml": ".graphml", "dot": ".dot", "node-link": ".json"}
VERSION_NOTES = {
    "choices": (
        "Medusa, EAGLE-1 and TensorRT-LLM before 1.4 read path lists. TensorRT-LLM 1.4 removed eagle_choices "
        "(NVIDIA/TensorRT-LLM#18210): set use_dynamic_tree, dynamic_tree_max_topK, max_draft_len and "
        "max_total_draft_tokens instead, which sequoia beam-plan finds. EAGLE-2 and later do not take path lists."
    ),
    "vllm": (
        "vLLM removed speculative_token_tree with its tree attention in May 2026 (vllm-project/vllm#42121); later "
        "releases draft chains: set num_speculative_tokens instead."
    ),
}
MAX_PATH_RANKS = 5_000_000  # limit on ranks in a path list, whose size grows with n * depth


def export_tree(tree: TokenTree, format: str, path: str | Path, acceptance: AcceptanceVector | None = None) -> None:
    """Write a tree in one of `TREE_FORMATS` or `GRAPH_FORMATS`.

    The native format also stores `acceptance` and the expected tokens; graph formats store node scores.
    """
    write_atomic(path, tree_to_bytes(tree, format, acceptance))


def tree_to_bytes(tree: TokenTree, format: str, acceptance: AcceptanceVector | None = None) -> bytes:
    """Return the bytes of the file that `export_tree` writes."""
    check_format(format)
    if format == "native":
        return _native_bytes(tree, acceptance)
    if format == "growmap":
        return growmap_bytes(tree)
    if format == "umbrella":
        return json_bytes(plain_growmap(tree))
    if format == "choices":
        return (json.dumps([list(path) for path in _choices(tree)]) + "\n").encode()
    if format == "vllm":
        _check_one_factor_per_level(tree)
        return (repr(_choices(tree)) + "\n").encode()
    return _graph_bytes(tree, format, acceptance)


def check_format(format: str) -> None:
    """Raise ValueError unless `format` is in `TREE_FORMATS` or `GRAPH_FORMATS`."""
    if format not in TREE_FORMATS | GRAPH_FORMATS:
        raise ValueError(f"format: found {format!r}, expected one of {', '.join(TREE_FORMATS | GRAPH_FORMATS)}")


def _graph_bytes(tree: TokenTree, format: str, acceptance: AcceptanceVector | None) -> bytes:
    import networkx as nx

    scores = {} if acceptance is None else {"score": node_scores(tree, acceptance)}
    graph = tree.to_networkx(**scores)
    if format == "graphml":
        return ("\n".join(nx.generate_graphml(graph)) + "\n").encode()
    if format == "node-link":
        return json_bytes(nx.node_link_data(graph, edges="edges"))
    nodes = (
        f"  {node} [" + ", ".join(f"{name}={value:.6g}" for name, value in facts.items()) + "];"
        for node, facts in graph.nodes(data=True)
    )
    edges = (f"  {parent} -> {child};" for parent, child in graph.edges)
    return "\n".join(["digraph tree {", *nodes, *edges, "}", ""]).encode()


def import_tree(path: str | Path) -> TokenTree:
    """Read a tree in any of `TREE_FORMATS`; the format is detected from the content."""
    return tree_from_bytes(read_bytes(path), str(path))


def tree_from_bytes(data: bytes, name: str) -> TokenTree:
    """Read a tree from the content of a file; `name` appears in error messages."""
    with prefix_errors(name):
        return _parse(data)


def _native_bytes(tree: TokenTree, acceptance: AcceptanceVector | None) -> bytes:
    fields = {
        "format": "sequoia-tree",
        "version": 1,
        "parents": tree.parents.tolist(),
        "acceptance": None,
        "expected_tokens": None,
    }
    if acceptance is not None:
        vector = {"probs": acceptance.probs.tolist(), "trials": acceptance.trials, "meta": acceptance.meta}
        fields |= {"acceptance": vector, "expected_tokens": expected_tokens(tree, acceptance)}
    return json_bytes(fields)


def _choices(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the path of 0-based ranks to each node except the root, ordered by (length, path)."""
    if int(tree.depths.sum(dtype=np.int64)) > MAX_PATH_RANKS:
        raise ValueError(f"found paths of {tree.depths.sum():,} ranks in total, expected at most {MAX_PATH_RANKS:,}")
    return [tuple(rank - 1 for rank in path) for path in tree.paths()[1:]]


def _check_one_factor_per_level(tree: TokenTree) -> None:
    """Raise ValueError for a tree that vLLM would misread: it divides each level's size by that of the level above."""
    if tree.size == 1:
        raise ValueError("found a tree without drafted nodes, expected at least one for vLLM")
    counts = tree.child_counts
    for level in tree.levels:
        odd = level[counts[level] != counts[level[0]]]
        if odd.size:
            raise ValueError(
                f"node {odd[0]}: found {counts[odd[0]]} children, expected {counts[level[0]]} as for node {level[0]} "
                "on the same level, because vLLM supports only trees with one branching factor per level (use "
                "format 'choices' for others)"
            )


def _parse(data: bytes) -> TokenTree:
    form = file_type(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
    if form == "a zip archive":
        return tree_from_growmap(growmap_from_torch(load_torch(data, "a growmap")))
    if form not in ("JSON", "text"):
        raise ValueError(f"found {form}, expected a tree as JSON, as a list of paths or as a growmap .pt")
    content = _json_or_literal(data)
    if isinstance(content, list):
        return _tree_from_choices(content)
    if isinstance(content, dict) and "Successors" in content:
        return tree_from_growmap(content)
    return TokenTree(np.array(validate_model(_TreeFile, content).parents))


def _json_or_literal(data: bytes) -> Any:
    """Parse JSON or a Python list of tuples, which is rewritten as JSON rather than evaluated."""
    text = decode_text(data, "JSON or a list of paths").strip()
    if re.match(r"['\"]?\s*\[", text):
        text = text.strip("'\"").translate(str.maketrans("()", "[]"))
        text = re.sub(r",\s*\]", "]", text)
    return read_json(text.encode())


class _TreeFile(FileModel):
    format: Literal["sequoia-tree"]
    version: Annotated[int, Field(ge=1, le=1)]
    parents: Annotated[list[int], Field(max_length=MAX_TREE_SIZE)]
    acceptance: dict[str, Any] | None = None
    expected_tokens: float | None = None


def _tree_from_choices(content: list[Any]) -> TokenTree:
    """Build a tree from paths of 0-based ranks, given in any order and without the root."""
    ids: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in content:
        if not isinstance(path, list) or not path or not all(type(rank) is int and rank >= 0 for rank in path):
            raise ValueError(f"path {shortened(path)}: expected a list of ranks >= 0, without the root")
    for path in sorted(map(tuple, content), key=lambda path: (len(path), path)):
        shown = shortened(list(path))
        if path in ids:
            raise ValueError(f"path {shown}: found twice, expected only once")
        if path[:-1] not in ids:
            raise ValueError(f"path {shown}: parent {shortened(list(path[:-1]))} is missing, expected all ancestors")
        if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in ids:
            raise ValueError(f"path {shown}: sibling {path[-1] - 1} is missing, expected ranks without gaps")
        ids[path] = len(parents)
        parents.append(ids[path[:-1]])
    return TokenTree(np.array(parents))
