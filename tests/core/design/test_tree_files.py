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
from sequoia_core.design.plain_trees import branching_tree, chain_tree, independent_chains
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
BUSHY_GROWMAP = {
    "roots": [[0], [1, 2, 3], [4, 5, 6], [7]],
    "branches": [[3], [2, 1, 0], [1, 0, 0], [0]],
    "Successors": [[1, 2, 3], [4, 5], [6], [], [7], [], [], []],
    "mask": [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0, 0, 1],
    ],
    "depth": [0, 1, 1, 1, 2, 2, 2, 3],
    "size": 8,
}
BUSHY_CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
TREES = {
    "root": TokenTree(np.array([-1])),
    "bushy": BUSHY,
    "chain": chain_tree(4),
    "chains": independent_chains(5, 8),
    "product": branching_tree([3, 2, 1]),
    "optimal": optimal_tree(VECTOR, size=64),
}


def refusal(data: bytes | str, *words: str) -> str:
    return hostile_files.refusal(tree_from_bytes, data.encode() if isinstance(data, str) else data, "t.json", *words)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("format", FORMATS)
def test_round_trip(tmp_path, name, format):
    tree, path = TREES[name], tmp_path / f"tree{FORMATS[format]}"
    if format == "vllm" and name in ("root", "bushy", "optimal"):
        with pytest.raises(ValueError, match="vLLM"):
            export_tree(tree, format, path, VECTOR)
        assert os.listdir(tmp_path) == []
        return
    export_tree(tree, format, path, VECTOR)
    assert os.listdir(tmp_path) == [path.name]
    assert import_tree(path) == tree
    assert tree_from_bytes(path.read_bytes(), "any name, the content decides") == tree


def test_native_keeps_the_vector_and_its_prediction():
    native = json.loads(tree_to_bytes(BUSHY, "native", VECTOR))
    assert (native["format"], native["version"]) == ("sequoia-tree", 1)
    assert native["parents"] == BUSHY.parents.tolist()
    assert native["acceptance"] == {"probs": VECTOR.probs.tolist(), "trials": None, "meta": {"source": "a test"}}
    assert native["expected_tokens"] == expected_tokens(BUSHY, VECTOR)
    bare = json.loads(tree_to_bytes(BUSHY, "native"))
    assert bare["acceptance"] is None and bare["expected_tokens"] is None


def test_growmap_has_the_reference_types():
    read = torch.load(io.BytesIO(tree_to_bytes(BUSHY, "growmap")), weights_only=True)
    assert list(read) == list(BUSHY_GROWMAP)
    for key, expected in BUSHY_GROWMAP.items():
        if key in ("mask", "depth"):
            assert read[key].dtype == torch.int64 and read[key].tolist() == expected
        else:
            assert read[key] == expected


def test_umbrella_and_lists_literally():
    assert json.loads(tree_to_bytes(BUSHY, "umbrella")) == BUSHY_GROWMAP
    assert json.loads(tree_to_bytes(BUSHY, "choices")) == BUSHY_CHOICES
    assert tree_to_bytes(branching_tree([2, 1]), "vllm") == b"[(0,), (1,), (0, 0), (1, 0)]\n"


@pytest.mark.parametrize(
    "text",
    [
        "[[0, 0, 0], [1, 0], [0, 0], [2], [0, 1], [1], [0]]",
        "[(0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0), (1, 0)]",
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


def test_the_largest_growmap_and_one_more():
    tree = chain_tree(MAX_GROWMAP_SIZE - 1)
    assert tree_from_bytes(tree_to_bytes(tree, "growmap"), "t") == tree
    larger = chain_tree(MAX_GROWMAP_SIZE)
    for format in ("growmap", "umbrella"):
        with pytest.raises(ValueError, match="2049 nodes, expected at most 2048"):
            tree_to_bytes(larger, format)
    with pytest.raises(ValueError, match="ranks in all"):
        tree_to_bytes(chain_tree(5000), "choices")
    assert tree_from_bytes(tree_to_bytes(chain_tree(5000), "native"), "t").depth == 5000


def test_vllm_refuses_what_it_would_draft_differently():
    with pytest.raises(ValueError, match="node 2: found 1 children where node 1 of the same level has 2"):
        tree_to_bytes(BUSHY, "vllm")
    assert tree_from_bytes(tree_to_bytes(branching_tree([4, 1, 2]), "vllm"), "t") == branching_tree([4, 1, 2])


def test_nearest_parameters():
    bushy = nearest_parameters(BUSHY)
    assert bushy["approximate"] is True and "Approximate" in bushy["note"]
    assert bushy["sglang"] == {
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 3,
        "speculative_num_draft_tokens": 8,
    }
    assert bushy["eagle2"] == {"depth": 2, "top_k": 3, "total_token": 8}
    assert bushy["transformers"]["num_assistant_tokens"] == 3
    chain = nearest_parameters(chain_tree(5))["sglang"]
    assert (chain["speculative_eagle_topk"], chain["speculative_num_draft_tokens"]) == (1, 6)
    # A complete ternary tree of depth 3 has 40 nodes; a beam of 3 can offer 1 + 3 + 9 + 9.
    assert nearest_parameters(branching_tree([3, 3, 3]))["eagle2"]["total_token"] == 22
    assert set(nearest_parameters(TREES["root"])) == {"approximate", "note"}


def test_unknown_format():
    with pytest.raises(ValueError, match="found 'medusa', expected one of native, growmap"):
        tree_to_bytes(BUSHY, "medusa")


@pytest.mark.parametrize(
    ("parents", "words"),
    [
        ([], ["expected a 1-D list of integers"]),
        ([0], ["node 0"]),
        ([-1, 1], ["node 1"]),
        ([-1, 0, -1], ["node 2"]),
        ([-1, 0, 1, 0], ["node 3", "breadth-first"]),
        ([-1, 2**70], ["parents"]),
        ([-1, 0.5], ["parents.1"]),
        ([-1, "0"], ["parents.1"]),
        ([-1, True], ["parents.1"]),
        ("no list", ["parents"]),
    ],
)
def test_native_names_the_node(parents, words):
    refusal(json.dumps({"format": "sequoia-tree", "version": 1, "parents": parents}), *words)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{}", "format"),
        ("7", "an object"),
        ('{"format": "sequoia-acceptance", "version": 1, "probs": [0.5]}', "sequoia-tree"),
        ('{"format": "sequoia-tree", "version": 3, "parents": [-1]}', "version"),
        ('{"format": "sequoia-tree", "version": 1}', "parents"),
        ('{"format": "sequoia-tree", "version": 1, "parents": [-1, 0', "no tree"),
        ('{"format": "sequoia-tree", "version": 1, "parents": [-1], "parents": [-1, 0]}', "twice"),
        ("[" * 10_000, "nested too deep"),
        ("(" * 10_000, "no tree"),
        ("[(0,), __import__('os')]", "no tree"),
        ("0.5\n0.2\n", "no tree"),
        ("[0.5, 0.2]", "acceptance vector"),
        ("[1, 2, 4]", "per level"),
        ("[-1, 0, 0]", "list of parents"),
        ('{"topk": 8, "depth": 6, "total_token": 60}', "settings (topk, depth, total_token) of an engine"),
        ('{"speculative_num_steps": 3}', "no fixed tree"),
        ('{"engine": "dynamic", "width": 8}', "dynamic engine"),
    ],
)
def test_other_text(text, word):
    refusal(text, word)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0], [0, 0], [0]]", ["path [0]", "twice"]),
        ("[[0], [1, 0]]", ["path [1, 0]", "no path [1]"]),
        ("[[0], [2]]", ["path [2]", "no sibling of rank 1"]),
        ("[[0], [0, 1]]", ["path [0, 1]", "no sibling of rank 0"]),
        ("[[1]]", ["path [1]"]),
        ("[[]]", ["path []", "without the root"]),
        ("[[0], 1]", ["path 1"]),
        ("[[0], [-1]]", ["path [-1]"]),
        ("[[0], [0.0]]", ["path [0.0]"]),
        ("[[0], [true]]", ["path [True]"]),
        ("[[0], [[0]]]", ["path [[0]]"]),
        ('["' + "x" * 500 + '"]', ["path"]),
    ],
)
def test_path_lists_name_the_path(text, words):
    refusal(text, *words)


def broken_growmaps():
    def change(key, edit):
        fields = copy.deepcopy(BUSHY_GROWMAP)
        fields[key] = edit(fields[key])
        return fields

    def put(index, value):
        return lambda rows: [*rows[:index], value, *rows[index + 1 :]]

    yield {key: value for key, value in BUSHY_GROWMAP.items() if key != "mask"}, ["mask", "roots, branches"]
    yield change("size", lambda _: 9), ["Successors", "9 nodes"]
    yield change("size", lambda _: 0), ["size"]
    yield change("size", lambda _: 10**9), ["size"]
    yield change("Successors", put(2, [6, 6])), ["node 2", "successor 6 where 7"]
    yield change("Successors", put(0, [2, 1, 3])), ["node 0", "successor 2 where 1"]
    yield change("Successors", put(4, [])), ["node 7", "no list of Successors"]
    yield change("Successors", put(7, [8])), ["node 7", "successor 8"]
    yield change("Successors", put(0, [1.0, 2.0, 3.0])), ["Successors.0.0"]
    yield change("depth", put(5, 3)), ["node 5", "found depth 3, expected 2"]
    yield change("depth", lambda rows: rows[:-1]), ["depth", "7 entries"]
    yield change("mask", put(6, [0] * 8)), ["node 6", "mask row"]
    yield change("mask", put(6, [1])), ["node 6", "mask row"]
    yield change("roots", put(1, [1, 2])), ["roots", "level 1"]
    yield change("roots", lambda rows: rows[:-1]), ["roots", "level 3"]
    yield change("branches", put(1, [2, 2, 0])), ["branches", "level 1"]
    yield change("branches", lambda rows: [*rows, []]), ["branches", "5 levels"]


@pytest.mark.parametrize(("fields", "words"), list(broken_growmaps()))
def test_growmaps_name_the_node(fields, words):
    refusal(json.dumps(fields), *words)
    tensors = {key: torch.tensor(fields[key]) for key in ("depth",)}
    refusal(torch_bytes(fields | tensors), *words)


def test_hostile_growmaps():
    refusal(torch_bytes(torch.tensor([0.5])), "found a Tensor", "growmap")
    refusal(torch_bytes([1, 2]), "found a list")
    refusal(torch_bytes(BUSHY_GROWMAP | {"mask": torch.zeros(1, dtype=torch.int64).expand(10**6, 10**6)}), "mask")
    refusal(torch_bytes(BUSHY_GROWMAP | {"depth": torch.zeros(8, dtype=torch.complex64)}), "depth")
    row = [0] * 100_000
    refusal(torch_bytes(BUSHY_GROWMAP | {"mask": [row] * 2000}), "mask", "too many")
    refusal(torch_bytes(BUSHY_GROWMAP | {"roots": [[0]] * 100_000}), "roots", "too many")


def test_growmaps_with_tensors_of_other_kinds():
    for value in (
        torch.tensor(8),
        torch.tensor([float("nan")] * 8),
        torch.tensor([1e30] * 8),
        torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.5]),
        torch.zeros(0),
        torch.zeros(8, dtype=torch.bool),
        torch.zeros(8).to_sparse(),
        torch.zeros(2, 2, 2),
    ):
        for key in ("depth", "mask", "roots", "Successors"):
            refusal(torch_bytes(BUSHY_GROWMAP | {key: value}))


def test_a_chain_of_a_million_nodes_fits_a_file_and_what_does_not_says_so():
    chain = TokenTree(np.arange(-1, 999_999))
    data = tree_to_bytes(chain, "native")
    assert len(data) < MAX_BYTES and tree_from_bytes(data, "t") == chain
    for format, words in (("choices", "ranks in all"), ("umbrella", "nodes")):
        with pytest.raises(ValueError, match=words):
            tree_to_bytes(chain, format)
    refusal(data.replace(b"[-1, ", b"[-1, 0, "), "parents", "1000000")


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        import_tree(tmp_path / "missing.pt")
    path = tmp_path / "tree.json"
    export_tree(BUSHY, "native", path)
    with pytest.raises(ValueError, match="vLLM"):
        export_tree(BUSHY, "vllm", path)
    assert import_tree(path) == BUSHY and os.listdir(tmp_path) == ["tree.json"]
    with pytest.raises(ValueError, match="cannot be written"):
        export_tree(BUSHY, "native", tmp_path / "no" / "tree.json")


def test_graphs_hold_the_tree_and_what_is_known_of_its_nodes(tmp_path):
    import networkx as nx

    tree = TokenTree(np.array([-1, 0, 0, 1, 1, 3]))
    vector = AcceptanceVector(np.array([0.5, 0.25]))
    graph = tree.to_networkx(score=node_scores(tree, vector), token=list("abcdef"))
    assert nx.is_arborescence(graph) and [graph.nodes[node]["token"] for node in range(6)] == list("abcdef")
    assert [graph.nodes[node]["rank"] for node in range(6)] == [0, 1, 2, 1, 2, 1]
    assert [graph.nodes[node]["depth"] for node in range(6)] == tree.depths.tolist()
    for format in GRAPH_FORMATS:
        export_tree(tree, format, tmp_path / format, vector)
    read = nx.read_graphml(tmp_path / "graphml", node_type=int)
    linked = nx.node_link_graph(json.loads((tmp_path / "node-link").read_text()), edges="edges")
    for found in (read, linked):
        assert set(found.edges) == set(graph.edges)
        assert [found.nodes[node]["score"] for node in range(6)] == pytest.approx([1, 0.5, 0.25, 0.25, 0.125, 0.125])
    dot = (tmp_path / "dot").read_text()
    assert "  5 [rank=1, depth=3, score=0.125];" in dot and "  3 -> 5;" in dot and dot.startswith("digraph tree {")
