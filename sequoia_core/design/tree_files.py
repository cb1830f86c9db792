"""Token trees as files: our own, and those of tools that decode with a fixed tree. n = nodes with the root."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ..files.file_kinds import decode_text, kind_of
from ..files.file_model import FileModel
from ..files.json_models import checked, naming
from ..files.safe_files import MAX_BYTES, json_bytes, load_torch, read_bytes, read_json, write_atomic
from .growmap import growmap_bytes, growmap_entries, plain_growmap, shortened, tree_from_growmap
from .optimal_trees import expected_tokens, node_scores
from .tree import MAX_SIZE, TokenTree

if TYPE_CHECKING:
    from .acceptance import AcceptanceVector

# Format -> usual file ending. `choices`: Medusa's medusa_choices, EAGLE-1's tree_choices.
FORMATS = {"native": ".json", "growmap": ".pt", "umbrella": ".json", "choices": ".json", "vllm": ".txt"}
# For tools that draw graphs; written only.
GRAPH_FORMATS = {"graphml": ".graphml", "dot": ".dot", "node-link": ".json"}
VERSION_NOTES = {
    "choices": (
        "Medusa, EAGLE-1 and TensorRT-LLM before 1.4 read path lists. TensorRT-LLM 1.4 removed eagle_choices "
        "(NVIDIA/TensorRT-LLM#18210): set use_dynamic_tree, dynamic_tree_max_topK, max_draft_len and "
        "max_total_draft_tokens there. EAGLE-2 and later take no lists."
    ),
    "vllm": (
        "vLLM removed speculative_token_tree with its tree attention in May 2026 (vllm-project/vllm#42121); later "
        "releases draft chains: set num_speculative_tokens there."
    ),
}
ENGINE_SETTING = re.compile("^(width|depth|num_beams|engine|top_?k|total_tokens?)$|speculative|draft|assistant|spec_")
MAX_PATH_RANKS = 5_000_000  # path lists grow with n * depth


def export_tree(tree: TokenTree, format: str, path: str | Path, acceptance: AcceptanceVector | None = None) -> None:
    """Write a tree for another tool, in one of `FORMATS` or `GRAPH_FORMATS`.

    The acceptance is kept in the native format with the tokens it predicts, and as scores of a graph's nodes.
    """
    write_atomic(path, tree_to_bytes(tree, format, acceptance))


def tree_to_bytes(tree: TokenTree, format: str, acceptance: AcceptanceVector | None = None) -> bytes:
    """Return the content of the file that `export_tree` writes."""
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
    """Refuse a format that is no key of `FORMATS` or `GRAPH_FORMATS`."""
    if format not in FORMATS | GRAPH_FORMATS:
        raise ValueError(f"format: found {format!r}, expected one of {', '.join(FORMATS | GRAPH_FORMATS)}")


def _graph_bytes(tree: TokenTree, format: str, acceptance: AcceptanceVector | None) -> bytes:
    import networkx as nx

    graph = tree.to_networkx(**({} if acceptance is None else {"score": node_scores(tree, acceptance)}))
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
    """Read a tree in any of the formats, recognised from the content."""
    return tree_from_bytes(read_bytes(path), str(path))


def tree_from_bytes(data: bytes, name: str) -> TokenTree:
    """Read a tree from a file's content, such as an upload; `name` is for the error message."""
    with naming(name):
        return _parse(data)


def nearest_parameters(tree: TokenTree) -> dict[str, Any]:
    """Return approximate settings for tools that choose the topology themselves, one dictionary per tool.

    SGLang, TensorRT-LLM and EAGLE-2 grow a beam of `top_k` per level and keep the best tokens; `generate` of Hugging
    Face drafts a chain.
    """
    note = (
        "Approximate: these tools choose the tree's shape at run time; only its depth, width and size can be set. "
        "SGLang counts the root among its draft tokens, TensorRT-LLM does not."
    )
    if tree.size == 1:
        return {"approximate": True, "note": "This tree drafts nothing: switch speculation off."}
    top_k = int(tree.child_counts.max())
    beam = 1 + top_k + (tree.depth - 1) * top_k**2  # what such a beam can offer: more draft tokens are refused
    size = min(tree.size, beam) if top_k > 1 else tree.depth + 1
    if top_k > 1:
        note += " SGLang's overlap scheduling (Spec V2) takes chains only: a top-k above 1 goes without it."
    return {
        "approximate": True,
        "note": note,
        "sglang": {
            "speculative_num_steps": tree.depth,
            "speculative_eagle_topk": top_k,
            "speculative_num_draft_tokens": size,
        },
        "tensorrt_llm": {
            "use_dynamic_tree": top_k > 1,
            "dynamic_tree_max_topK": top_k,
            "max_draft_len": tree.depth,
            "max_total_draft_tokens": min(size - 1, top_k * tree.depth),  # more are refused
        },
        # EAGLE's depth does not count the first level, which comes from the pass over the accepted tokens.
        "eagle2": {"depth": tree.depth - 1, "top_k": top_k, "total_token": size},
        "transformers": {"num_assistant_tokens": tree.depth, "num_assistant_tokens_schedule": "constant"},
    }


def _native_bytes(tree: TokenTree, acceptance: AcceptanceVector | None) -> bytes:
    vector, expected = None, None
    if acceptance is not None:
        vector = {"probs": acceptance.probs.tolist(), "trials": acceptance.trials, "meta": acceptance.meta}
        expected = expected_tokens(tree, acceptance)
    fields = {"parents": tree.parents.tolist(), "acceptance": vector, "expected_tokens": expected}
    return json_bytes({"format": "sequoia-tree", "version": 1, **fields})


def _choices(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return each node's 0-based ranks, root omitted; breadth-first order is the order by (length, path)."""
    if int(tree.depths.sum(dtype=np.int64)) > MAX_PATH_RANKS:
        raise ValueError(f"found paths of {tree.depths.sum():,} ranks in all, expected at most {MAX_PATH_RANKS:,}")
    return [tuple(rank - 1 for rank in path) for path in tree.paths()[1:]]


def _check_one_factor_per_level(tree: TokenTree) -> None:
    """Refuse a tree that vLLM would silently draft as another: it divides each level's size by the one above."""
    if tree.size == 1:
        raise ValueError("found a tree without drafted nodes, expected at least one for vLLM")
    counts = tree.child_counts
    for level in tree.levels:
        odd = level[counts[level] != counts[level[0]]]
        if odd.size:
            raise ValueError(
                f"node {odd[0]}: found {counts[odd[0]]} children where node {level[0]} of the same level has "
                f"{counts[level[0]]}, expected one branching factor per level: vLLM can draft no other tree "
                "(format 'choices' holds any)"
            )


def _parse(data: bytes) -> TokenTree:
    kind = kind_of(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
    if kind == "a zip archive":
        return tree_from_growmap(growmap_entries(load_torch(data, "a growmap")))
    if kind not in ("JSON", "text"):
        raise ValueError(f"found {kind}, expected a tree as JSON, as a list of paths or as a growmap .pt")
    content = _json_or_literal(data)
    if other := _other_than_a_tree(content):
        raise ValueError(f"found {other}, expected a tree: a list of paths, a growmap or Sequoia's own JSON")
    if isinstance(content, list):
        return _from_choices(content)
    if isinstance(content, dict) and "Successors" in content:
        return tree_from_growmap(content)
    return TokenTree(np.array(checked(_TreeFile, content).parents))


def _other_than_a_tree(content: Any) -> str | None:
    """Return what is near a tree and none, in words; None where it may be one."""
    if isinstance(content, dict):
        settings = [key for key in content if ENGINE_SETTING.search(key)]
        if "format" not in content and "Successors" not in content and settings:
            engine = "dynamic engine" if content.get("engine") == "dynamic" else "engine"
            return f"settings ({', '.join(settings)[:80]}) of an engine: what a {engine} grows is no fixed tree"
    if not isinstance(content, list) or not content or not all(type(entry) in (int, float) for entry in content):
        return None
    if not all(type(entry) is int for entry in content):
        return "a list of fractions, such as an acceptance vector's"
    if content[0] == -1:
        return 'a list of parents ({"format": "sequoia-tree", "version": 1, "parents": [...]} holds one)'
    return "a list of whole numbers, such as nodes or children per level: they leave open which node has which children"


def _json_or_literal(data: bytes) -> Any:
    """Parse JSON, or the Python literal of a list of tuples, which is rewritten to JSON and never evaluated."""
    text = decode_text(data, "JSON or a list of paths").strip()
    if re.match(r"['\"]?\s*\[", text):
        text = text.strip("'\"").translate(str.maketrans("()", "[]"))
        text = re.sub(r",\s*\]", "]", text)
    return read_json(text.encode())


class _TreeFile(FileModel):
    format: Literal["sequoia-tree"]
    version: Annotated[int, Field(ge=1, le=1)]
    parents: Annotated[list[int], Field(max_length=MAX_SIZE)]
    acceptance: dict[str, Any] | None = None
    expected_tokens: float | None = None


def _from_choices(content: list[Any]) -> TokenTree:
    """Read 0-based rank paths in any order, root omitted."""
    ids: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in content:
        if not isinstance(path, list) or not path or not all(type(rank) is int and rank >= 0 for rank in path):
            raise ValueError(f"path {shortened(path)}: expected a list of ranks from 0 up, without the root")
    for path in sorted(map(tuple, content), key=lambda path: (len(path), path)):
        shown = shortened(list(path))
        if path in ids:
            raise ValueError(f"path {shown}: found it twice, expected each node once")
        if path[:-1] not in ids:
            raise ValueError(
                f"path {shown}: found no path {shortened(list(path[:-1]))}, expected its parent in the list"
            )
        if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in ids:
            raise ValueError(f"path {shown}: found no sibling of rank {path[-1] - 1}, expected ranks without gaps")
        ids[path] = len(parents)
        parents.append(ids[path[:-1]])
    return TokenTree(np.array(parents))
