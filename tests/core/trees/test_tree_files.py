"""Tree files: round trips in every format, and messages about invalid files."""

import copy
import io
import json
import os

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.safe_files import MAX_BYTES
from sequoia_core.trees.growmap import MAX_GROWMAP_SIZE
from sequoia_core.trees.optimal import expected_tokens, node_scores, optimal_tree
from sequoia_core.trees.plain import branching_tree, chain_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_core.trees.tree_files import (
    GRAPH_FORMATS,
    TREE_FORMATS,
    export_tree,
    import_tree,
    tree_from_bytes,
    tree_to_bytes,
)
from tests import hostile_files
from tests.hostile_files import torch_bytes

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1, 0.05]), meta={"source": "a test"})
#        0
#     1  2  3
#   4 5  6
#   7
BUSHY = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 2, 4]))
PATHS = [[0], [0, 1], [0, 2], [0, 3], [0, 1, 4], [0, 1, 5], [0, 2, 6], [0, 1, 4, 7]]  # node ids from the root
BUSHY_GROWMAP = {
    "roots": [[0], [1, 2, 3], [4, 5, 6], [7]],
    "branches": [[3], [2, 1, 0], [1, 0, 0], [0]],
    "Successors": [[1, 2, 3], [4, 5], [6], [], [7], [], [], []],
    "mask": [[int(v in path) for v in range(8)] for path in PATHS],
    "depth": [0, 1, 1, 1, 2, 2, 2, 3],
    "size": 8,
}
BUSHY_CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
TREES = {
    "root": TokenTree(np.array([-1])),
    "bushy": BUSHY,
    "chain": chain_tree(4),
    "optimal": optimal_tree(VECTOR, size=64),
}


def refusal(data: bytes | str, *words: str) -> str:
    return hostile_files.refusal(tree_from_bytes, data.encode() if isinstance(data, str) else data, "t.json", *words)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("format", TREE_FORMATS)
def test_round_trip(tmp_path, name, format):
    tree, path = TREES[name], tmp_path / f"tree{TREE_FORMATS[format]}"
    if format == "vllm" and name in ("root", "bushy", "optimal"):
        path.write_bytes(b"an older file")
        with pytest.raises(ValueError, match="vLLM"):
            export_tree(tree, format, path, VECTOR)
        assert path.read_bytes() == b"an older file" and os.listdir(tmp_path) == [path.name]
        return
    export_tree(tree, format, path, VECTOR)
    assert import_tree(path) == tree


def test_native_format_stores_the_vector_and_expected_tokens():
    native = json.loads(tree_to_bytes(BUSHY, "native", VECTOR))
    assert (native["format"], native["version"]) == ("sequoia-tree", 1)
    assert native["parents"] == BUSHY.parents.tolist()
    assert native["acceptance"] == {"probs": VECTOR.probs.tolist(), "trials": None, "meta": {"source": "a test"}}
    assert native["expected_tokens"] == expected_tokens(BUSHY, VECTOR)


def test_growmap_uses_the_types_of_the_reference_code():
    read = torch.load(io.BytesIO(tree_to_bytes(BUSHY, "growmap")), weights_only=True)
    assert read["mask"].dtype == read["depth"].dtype == torch.int64
    assert read | {key: read[key].tolist() for key in ("mask", "depth")} == BUSHY_GROWMAP


def test_text_formats_by_hand():
    assert json.loads(tree_to_bytes(BUSHY, "umbrella")) == BUSHY_GROWMAP
    assert json.loads(tree_to_bytes(BUSHY, "choices")) == BUSHY_CHOICES
    assert tree_to_bytes(branching_tree([2, 1]), "vllm") == b"[(0,), (1,), (0, 0), (1, 0)]\n"


@pytest.mark.parametrize(
    "text",
    [
        "[[0, 0, 0], [1, 0], [0, 0], [2], [0, 1], [1], [0]]",
        "\ufeff[\n  (0,),\n  (0, 0), (1, ), (0, 1), (2,), (0, 0, 0), (1, 0),\n]\n",
        "'[(0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0), (1, 0)]'",
    ],
)
def test_path_lists_are_read_in_any_order_and_syntax(text):
    assert tree_from_bytes(text.encode(), "t") == BUSHY


def test_growmaps_with_other_integer_types_are_read():
    fields = BUSHY_GROWMAP | {
        "mask": torch.tensor(BUSHY_GROWMAP["mask"], dtype=torch.bool),
        "depth": torch.tensor(BUSHY_GROWMAP["depth"], dtype=torch.int32),
        "size": torch.tensor(8),
    }
    assert tree_from_bytes(torch_bytes(fields), "t") == BUSHY
    refusal(torch_bytes(torch.tensor([0.5])), "found a Tensor", "growmap")


def test_trees_that_a_format_cannot_represent_are_refused():
    for tree, format, words in (
        (chain_tree(MAX_GROWMAP_SIZE), "growmap", "2049 nodes, expected at most 2048"),
        (chain_tree(5000), "choices", "ranks in total"),
        (BUSHY, "vllm", "node 2: found 1 children, expected 2 as for node 1"),
        (BUSHY, "medusa", "found 'medusa', expected one of native, growmap"),
    ):
        with pytest.raises(ValueError, match=words):
            tree_to_bytes(tree, format)


def native(parents: list) -> str:
    return json.dumps({"format": "sequoia-tree", "version": 1, "parents": parents})


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (native([-1, 1]), ["node 1"]),
        (native([-1, True]), ["parents.1"]),
        ('{"format": "sequoia-tree", "version": 3, "parents": [-1]}', ["version"]),
        ("[(0,), __import__('os')]", ["invalid JSON"]),
        ("[[0], [0, 0], [0]]", ["path [0]", "twice"]),
        ("[[0], [1, 0]]", ["path [1, 0]", "parent [1] is missing"]),
        ("[[]]", ["path []", "without the root"]),
        ("[[0], [-1]]", ["path [-1]"]),
    ],
)
def test_invalid_text_files_are_refused(text, words):
    refusal(text, *words)


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("key", "index", "value", "words"),
    [
        ("size", None, 9, ["Successors", "9 nodes"]),
        ("Successors", 2, [6, 6], ["node 2", "successor 6, expected 7"]),
        ("Successors", 4, [], ["node 7", "missing from Successors"]),
        ("depth", 5, 3, ["depth", "found 3 at node 5, expected 2"]),
        ("mask", 6, [0] * 8, ["mask", "node 6"]),
        ("roots", 1, [1, 2], ["roots", "level 1"]),
        ("roots", None, [*BUSHY_GROWMAP["roots"], []], ["roots", "found 5 entries, expected 4"]),
        ("mask", None, torch.zeros(1, dtype=torch.int64).expand(10**6, 10**6), ["mask"]),
        ("mask", None, [[0] * 100_000] * 2000, ["mask", "at most 2048"]),
        ("depth", None, torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.5]), ["depth"]),
    ],
)
def test_inconsistent_growmaps_are_refused(key, index, value, words):
    fields = copy.deepcopy(BUSHY_GROWMAP)
    if index is None:
        fields[key] = value
    else:
        fields[key][index] = value
    refusal(torch_bytes(fields), *words)
    if not isinstance(value, torch.Tensor) and "at most 2048" not in words:
        refusal(json.dumps(fields), *words)


def test_native_format_holds_a_million_nodes_at_most():
    chain = TokenTree(np.arange(-1, 999_999))
    data = tree_to_bytes(chain, "native")
    assert len(data) < MAX_BYTES and tree_from_bytes(data, "t") == chain
    refusal(data.replace(b"[-1, ", b"[-1, 0, "), "parents", "1000000")


def test_graph_formats_store_edges_and_node_attributes(tmp_path):
    import networkx as nx

    tree = TokenTree(np.array([-1, 0, 0, 1, 1, 3]))
    vector = AcceptanceVector(np.array([0.5, 0.25]))
    graph = tree.to_networkx(token=list("abcdef"))
    assert nx.is_arborescence(graph) and graph.nodes[4] == {"rank": 2, "depth": 2, "token": "e"}
    for format in GRAPH_FORMATS:
        export_tree(tree, format, tmp_path / format, vector)
    read = nx.read_graphml(tmp_path / "graphml", node_type=int)
    linked = nx.node_link_graph(json.loads((tmp_path / "node-link").read_text()), edges="edges")
    wanted = tree.to_networkx(score=node_scores(tree, vector))
    for found in (read, linked):
        assert dict(found.nodes.data()) == dict(wanted.nodes.data()) and set(found.edges) == set(wanted.edges)
    dot = (tmp_path / "dot").read_text()
    assert "  5 [rank=1, depth=3, score=0.125];" in dot and "  3 -> 5;" in dot and dot.startswith("digraph tree {")
