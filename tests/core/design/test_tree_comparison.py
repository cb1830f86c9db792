"""Two trees compared, one node described, a run's trees: by hand on small trees."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_comparison import NEAREST_SHAPES, compare_trees, gallery, node_facts

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
    assert node_facts(TokenTree(np.array([-1, 0, 0, 0, 0])), VECTOR, 4).probability == 0.0  # a rank beyond the vector
    root = node_facts(BUSH, VECTOR, 0)
    assert (root.rank, root.ranks, root.probability, root.score, root.below) == (0, (), 1.0, 1.0, 3)
    assert root.subtree_tokens == pytest.approx(expected_tokens(BUSH, VECTOR))


TREES = [chain_tree(5), chain_tree(3), TokenTree(np.array([-1, 0, 0, 0])), k_ary_tree(2, 2), chain_tree(9)]


def test_the_typical_tree_of_a_run_is_the_most_frequent_of_median_size():
    found = gallery(TREES, [0, 1, 2, 2, 3])  # of 6, 4, 4, 4 and 7 nodes
    assert found.typical == TREES[2] and found.deepest == TREES[0] and found.widest == TREES[3]
    assert found.sizes.tolist() == [4, 6, 7] and found.steps.tolist() == [3, 1, 1]
    assert gallery(TREES, [1]).deepest == TREES[1]  # trees that no step had do not count
    with pytest.raises(ValueError, match="shown: found no steps"):
        gallery(TREES, [])
