"""Two trees compared, one node described: by hand on small trees."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens, node_scores, optimal_tree
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_comparison import NEAREST_SHAPES, compare_trees, node_facts

VECTOR = AcceptanceVector(np.array([0.5, 0.2, 0.1]))
BUSH = TokenTree(np.array([-1, 0, 0, 1]))  # two children, and one below the first


def test_what_one_adds_and_drops():
    found = compare_trees(BUSH, chain_tree(3), VECTOR)
    assert found.shared.tolist() == [True, True, False, True]
    assert (found.dropped, found.dropped_tokens) == (1, pytest.approx(0.2))
    assert (found.added, found.added_tokens) == (1, pytest.approx(0.125))
    gained = expected_tokens(chain_tree(3), VECTOR) - expected_tokens(BUSH, VECTOR)
    assert gained == pytest.approx(found.added_tokens - found.dropped_tokens)


@pytest.mark.parametrize("name", NEAREST_SHAPES)
@pytest.mark.parametrize("size", [2, 3, 20, 200])
def test_the_nearest_plain_shape_is_never_larger_or_better(name: str, size: int):
    tree = optimal_tree(VECTOR, size=size, depth=8)
    other = NEAREST_SHAPES[name](tree, VECTOR)
    assert other.size <= tree.size
    if other.depth <= tree.depth:
        assert expected_tokens(other, VECTOR) <= expected_tokens(tree, VECTOR) + 1e-9


def test_a_node_and_what_is_below_it():
    facts = node_facts(BUSH, VECTOR, 1)
    assert (facts.rank, facts.depth, facts.ranks, facts.children, facts.below) == (1, 1, (1,), 1, 1)
    assert (facts.probability, facts.score) == (0.5, 0.5) and facts.subtree_tokens == pytest.approx(0.75)
    root = node_facts(BUSH, VECTOR, 0)
    assert (root.rank, root.ranks, root.probability, root.score, root.below) == (0, (), 1.0, 1.0, 3)
    assert root.subtree_tokens == pytest.approx(expected_tokens(BUSH, VECTOR))


def test_a_rank_beyond_the_vector_is_never_accepted():
    assert node_facts(TokenTree(np.array([-1, 0, 0, 0, 0])), VECTOR, 4).probability == 0.0


def test_the_worth_of_a_subtree_is_a_sum_over_paths():
    tree = optimal_tree(VECTOR, size=40, depth=5)
    scores = node_scores(tree, VECTOR)
    for node in range(tree.size):
        inside = [v for v in range(tree.size) if node in tree.path_to(v)]
        assert node_facts(tree, VECTOR, node).subtree_tokens == pytest.approx(scores[inside].sum())
