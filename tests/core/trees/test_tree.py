import numpy as np
import pytest

from sequoia_core.trees.tree import TokenTree

PARENTS = np.array([-1, 0, 0, 0, 1, 1, 2, 4, 4])


def test_derived_arrays_of_a_small_tree():
    tree = TokenTree(PARENTS)
    assert tree.size == 9
    assert tree.child_ranks.tolist() == [0, 1, 2, 3, 1, 2, 1, 1, 2]
    assert tree.child_counts.tolist() == [3, 2, 1, 0, 2, 0, 0, 0, 0]
    assert list(tree.children(1)) == [4, 5] and list(tree.children(8)) == []
    assert tree.paths()[7:] == [(1, 1, 1), (1, 1, 2)] and tree.paths()[0] == ()
    assert tree.path_to(8) == [0, 1, 4, 8]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "1-D"),
        ([-1.0, 0.5], "integers"),
        ([0, 0], "node 0"),
        ([-1, 1], "node 1"),
        ([-1, 0, 5], "node 2"),
        ([-1, 0, 1, 0], "node 3.*breadth-first"),
    ],
)
def test_invalid_parents_are_refused(parents, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(np.array(parents))


def test_from_links_accepts_any_order():
    tree, order = TokenTree.from_links(np.array([-1, 3, 0, 0, 3]), np.array([0, 2, 2, 1, 1]))
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1]
    assert order.tolist() == [0, 3, 2, 4, 1]


def test_shared_nodes_have_the_same_path():
    generator = np.random.default_rng(0)
    for _ in range(20):
        first, second = (
            TokenTree(np.array([-1, *sorted(int(generator.integers(0, i)) for i in range(1, 15))])) for _ in range(2)
        )
        found, places = first.shared_with(second), {path: node for node, path in enumerate(second.paths())}
        assert found.tolist() == [places.get(path, -1) for path in first.paths()]
    assert first.shared_with(first).tolist() == list(range(15))


def test_depths_levels_and_masks_of_random_trees():
    generator = np.random.default_rng(1)
    for size in (1, 2, 3, 10, 60):
        for _ in range(20):
            reach = int(generator.integers(1, size + 1))  # from chains to bushes
            parents = [max(0, int(generator.integers(max(0, i - reach), i))) for i in range(1, size)]
            tree = TokenTree(np.array([-1, *sorted(parents)]))
            paths = [tree.path_to(node) for node in range(size)]
            depths = [len(path) - 1 for path in paths]
            assert tree.depths.tolist() == depths and tree.depth == max(depths) and tree.depths.dtype == np.int32
            assert [np.flatnonzero(row).tolist() for row in tree.ancestor_mask] == paths
            assert [level.tolist() for level in tree.levels] == [
                [node for node in range(size) if depths[node] == d] for d in range(max(depths) + 1)
            ]
