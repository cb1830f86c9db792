"""Tree layout: rank 1 is straight, leaves have separate rows, edges do not cross."""

import numpy as np
import pytest

from sequoia_core.trees.tree import TokenTree
from ui import tree_layout


def tidy_layout(tree: TokenTree) -> np.ndarray:
    return np.array(list(tree_layout.tidy_layout(tree.to_networkx()).values()))


def random_tree(size: int, seed: int) -> TokenTree:
    generator = np.random.default_rng(seed)
    parents = [-1, *sorted(int(generator.integers(0, i)) for i in range(1, size))]
    links = np.array(parents)
    links[1:] = np.minimum(links[1:], np.arange(size - 1))
    return TokenTree(links)


@pytest.mark.parametrize("seed", range(8))
def test_rank_1_is_straight_and_no_edges_cross(seed: int) -> None:
    tree = random_tree(60, seed)
    place = tidy_layout(tree)
    is_leaf = tree.child_counts == 0
    np.testing.assert_array_equal(np.sort(place[is_leaf, 0]), np.arange(is_leaf.sum()))
    for node in np.flatnonzero(tree.child_counts):
        first, *others = place[list(tree.children(int(node))), 0]
        assert first == place[node, 0]
        assert all((row > first) == ((turn + tree.depths[node]) % 2 == 0) for turn, row in enumerate(others))
    for level in tree.levels[1:]:
        rows = place[level, 0]
        order = np.argsort(rows)
        assert np.all(np.diff(rows[order]) >= 1), "no two nodes of a level meet"
        assert np.all(np.diff(place[tree.parents[level][order], 0]) >= 0), "no edges cross"
    np.testing.assert_array_equal(place[:, 1], tree.depths)
