"""Tree files: every format there and back, and what is wrong with a file is named."""

import copy
import io
import json
import os

import numpy as np
import pytest
import torch

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.growmap import MAX_GROWMAP_SIZE
from sequoia_core.design.optimal_trees import expected_tokens, node_scores, optimal_tree
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_files import (
    FORMATS,
    GRAPH_FORMATS,
    export_tree,
    import_tree,
    nearest_parameters,
    tree_from_bytes,
    tree_to_bytes,
)
from sequoia_core.files.safe_files import MAX_BYTES
from tests import hostile_files
from tests.hostile_files import torch_bytes

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1, 0.05]), meta={"source": "a test"})
#        0
#     1  2  3
#   4 5  6
#   7
BUSHY = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 2, 4]))
PATHS = [[0], [0, 1], [0, 2], [0, 3], [0, 1, 4], [0, 1, 5], [0, 2, 6], [0, 1, 4, 7]]  # of node ids, from the root
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
@pytest.mark.parametrize("format", FORMATS)
def test_round_trip(tmp_path, name, format):
    tree, path = TREES[name], tmp_path / f"tree{FORMATS[format]}"
    if format == "vllm" and name in ("root", "bushy", "optimal"):
        path.write_bytes(b"an older file")
        with pytest.raises(ValueError, match="vLLM"):
            export_tree(tree, format, path, VECTOR)
        assert path.read_bytes() == b"an older file" and os.listdir(tmp_path) == [path.name]
        return
    export_tree(tree, format, path, VECTOR)
    assert import_tree(path) == tree
    assert tree_from_bytes(path.read_bytes(), "any name, the content decides") == tree


def test_native_keeps_the_vector_and_its_prediction():
    native = json.loads(tree_to_bytes(BUSHY, "native", VECTOR))
    assert (native["format"], native["version"]) == ("sequoia-tree", 1)
    assert native["parents"] == BUSHY.parents.tolist()
    assert native["acceptance"] == {"probs": VECTOR.probs.tolist(), "trials": None, "meta": {"source": "a test"}}
    assert native["expected_tokens"] == expected_tokens(BUSHY, VECTOR)


def test_growmap_has_the_reference_types():
    read = torch.load(io.BytesIO(tree_to_bytes(BUSHY, "growmap")), weights_only=True)
    assert read["mask"].dtype == read["depth"].dtype == torch.int64
    assert read | {key: read[key].tolist() for key in ("mask", "depth")} == BUSHY_GROWMAP


def test_text_formats_literally():
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
def test_path_lists_in_any_order_and_spelling(text):
    assert tree_from_bytes(text.encode(), "t") == BUSHY


def test_growmap_with_other_integer_types():
    fields = BUSHY_GROWMAP | {
        "mask": torch.tensor(BUSHY_GROWMAP["mask"], dtype=torch.bool),
        "depth": torch.tensor(BUSHY_GROWMAP["depth"], dtype=torch.int32),
        "size": torch.tensor(8),
    }
    assert tree_from_bytes(torch_bytes(fields), "t") == BUSHY
    assert tree_from_bytes(torch_bytes(BUSHY_GROWMAP | {"extra": [1.5]}), "t") == BUSHY
    refusal(torch_bytes(torch.tensor([0.5])), "found a Tensor", "growmap")


def test_what_a_format_cannot_hold_is_not_written():
    for tree, format, words in (
        (chain_tree(MAX_GROWMAP_SIZE), "growmap", "2049 nodes, expected at most 2048"),
        (chain_tree(MAX_GROWMAP_SIZE), "umbrella", "2049 nodes, expected at most 2048"),
        (chain_tree(5000), "choices", "ranks in all"),
        (BUSHY, "vllm", "node 2: found 1 children where node 1 of the same level has 2"),
        (BUSHY, "medusa", "found 'medusa', expected one of native, growmap"),
    ):
        with pytest.raises(ValueError, match=words):
            tree_to_bytes(tree, format)
    largest = chain_tree(MAX_GROWMAP_SIZE - 1)
    assert tree_from_bytes(tree_to_bytes(largest, "growmap"), "t") == largest


def test_nearest_parameters():
    bushy = nearest_parameters(BUSHY)
    assert bushy["approximate"] is True and "Approximate" in bushy["note"]
    steps, top_k, tokens = bushy["sglang"].values()
    assert (steps, top_k, tokens) == (3, 3, 8) and bushy["transformers"]["num_assistant_tokens"] == 3
    assert "counts the root" in bushy["note"] and "Spec V2" in bushy["note"]
    assert bushy["tensorrt_llm"] == {
        "use_dynamic_tree": True, "dynamic_tree_max_topK": 3, "max_draft_len": 3, "max_total_draft_tokens": 7,
    }  # fmt: skip
    assert bushy["eagle2"] == {"depth": 2, "top_k": 3, "total_token": 8}
    chain = nearest_parameters(chain_tree(5))
    assert list(chain["sglang"].values()) == [5, 1, 6] and list(chain["tensorrt_llm"].values()) == [False, 1, 5, 5]
    assert "Spec V2" not in chain["note"]
    # A complete ternary tree of depth 3 has 40 nodes; a beam of 3 can offer 1 + 3 + 9 + 9.
    assert nearest_parameters(branching_tree([3, 3, 3]))["eagle2"]["total_token"] == 22
    assert set(nearest_parameters(TREES["root"])) == {"approximate", "note"}


def native(parents: list) -> str:
    return json.dumps({"format": "sequoia-tree", "version": 1, "parents": parents})


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (native([-1, 1]), ["node 1"]),
        (native([-1, True]), ["parents.1"]),
        ('{"format": "sequoia-tree", "version": 3, "parents": [-1]}', ["version"]),
        ("[(0,), __import__('os')]", ["no readable JSON"]),
        ("[0.5, 0.2]", ["acceptance vector"]),
        ("[1, 2, 4]", ["per level"]),
        ("[-1, 0, 0]", ["list of parents"]),
        ('{"topk": 8, "depth": 6, "total_token": 60}', ["settings (topk, depth, total_token) of an engine"]),
        ("[[0], [0, 0], [0]]", ["path [0]", "twice"]),
        ("[[0], [1, 0]]", ["path [1, 0]", "no path [1]"]),
        ("[[]]", ["path []", "without the root"]),
        ("[[0], [-1]]", ["path [-1]"]),
    ],
)
def test_what_is_wrong_with_a_text_is_named(text, words):
    refusal(text, *words)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("key", "index", "value", "words"),
    [
        ("size", None, 9, ["Successors", "9 nodes"]),
        ("Successors", 2, [6, 6], ["node 2", "successor 6 where 7"]),
        ("Successors", 4, [], ["node 7", "no list of Successors"]),
        ("depth", 5, 3, ["node 5", "found depth 3, expected 2"]),
        ("mask", 6, [0] * 8, ["node 6", "mask row"]),
        ("roots", 1, [1, 2], ["roots", "level 1"]),
        ("branches", 1, [2, 2, 0], ["branches", "level 1"]),
        ("roots", None, [*BUSHY_GROWMAP["roots"], []], ["roots", "found 5 levels, expected 4"]),
        ("branches", None, [*BUSHY_GROWMAP["branches"], []], ["branches", "found 5 levels, expected 4"]),
        ("mask", None, torch.zeros(1, dtype=torch.int64).expand(10**6, 10**6), ["mask"]),
        ("mask", None, [[0] * 100_000] * 2000, ["mask", "too many"]),
        ("depth", None, torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.5]), ["depth"]),
    ],
)
def test_growmaps_that_are_wrong_are_refused_by_the_node(key, index, value, words):
    fields = copy.deepcopy(BUSHY_GROWMAP)
    if index is None:
        fields[key] = value
    else:
        fields[key][index] = value
    refusal(torch_bytes(fields), *words)
    if not isinstance(value, torch.Tensor) and "too many" not in words:
        refusal(json.dumps(fields), *words)


def test_a_chain_of_a_million_nodes_fits_a_file_and_one_more_does_not():
    chain = TokenTree(np.arange(-1, 999_999))
    data = tree_to_bytes(chain, "native")
    assert len(data) < MAX_BYTES and tree_from_bytes(data, "t") == chain
    refusal(data.replace(b"[-1, ", b"[-1, 0, "), "parents", "1000000")


def test_graphs_hold_the_tree_and_what_is_known_of_its_nodes(tmp_path):
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
