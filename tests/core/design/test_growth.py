"""Growth with size: curves against the trees they stand for, bands and intervals against the vector's own."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.growth import growth_band, growth_curves, next_node_value, theorem_bound
from sequoia_core.design.optimal_trees import bootstrap_tables, expected_tokens, expected_tokens_table
from sequoia_core.design.plain_trees import best_chains, branching_tree, independent_chains

FALLING = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
UNEVEN = AcceptanceVector(np.array([0.4, 0.05, 0.3]))
TABLE = expected_tokens_table(FALLING, max_size=64, max_depth=8)


def test_no_plain_shape_passes_the_best_tree_of_its_depth():
    curves = growth_curves(FALLING, TABLE, depth=4)
    sizes, best = curves["best tree, d ≤ 4"]
    np.testing.assert_array_equal(best, TABLE[sizes, 4])
    plain = {"one chain": 4, "beam of depth 4": 4, "two children everywhere": 4, "k chains, d ≤ 8": 8}
    for name, depth in plain.items():
        at, tokens = curves[name]
        assert (np.diff(at) > 0).all() and at[-1] <= 64
        assert (tokens <= TABLE[at, depth] + 1e-9).all(), name
    assert "best tree, d ≤ 8" in curves and curves["one chain"][1][-1] == pytest.approx(sum(0.6**k for k in range(5)))


@pytest.mark.parametrize("vector", [FALLING, UNEVEN, AcceptanceVector(np.array([1.0]))])
def test_chains_are_as_many_and_as_long_as_pays(vector):
    for size, depth in ((1, 4), (2, 4), (9, 8), (20, 3), (64, 8)):
        shapes = [(k, length) for k in range(1, 4) for length in range(depth + 1) if k * length < size]
        best = max(expected_tokens(independent_chains(*shape), vector) for shape in shapes)
        found = best_chains(vector, size=size, depth=depth)
        assert found.size <= size and expected_tokens(found, vector) == pytest.approx(best)


@pytest.mark.parametrize("probs", [[0.6, 0.2, 0.1], [0.4, 0.05, 0.3], [0.2, 0.8]])
def test_the_theorems_bound_is_below_the_best_tree_of_every_size(probs):
    vector = AcceptanceVector(np.array(probs))
    for depth in (1, 3, 8):
        b, (sizes, tokens) = theorem_bound(vector, max_size=64, depth=depth)
        best = expected_tokens_table(vector, max_size=64, max_depth=depth)[1:, depth]
        assert sizes.tolist() == list(range(1, 65)) and (np.diff(tokens) >= 0).all() and tokens[-1] > 1.0
        assert (tokens <= np.maximum.accumulate(best) + 1e-9).all()
        rejection = 1.0 - np.cumsum(vector.probs)
        assert (rejection <= np.arange(1.0, len(vector) + 1) ** -b + 1e-9).all()


def test_the_bound_of_a_power_law_is_its_k_ary_trees():
    """Where all k are rejected with a chance of just k^-b, nothing is lost: complete trees of k children reach it."""
    b = 0.8
    vector = AcceptanceVector(-np.diff(np.arange(1.0, 18.0) ** -b, prepend=1.0))
    found, (_, tokens) = theorem_bound(vector, max_size=300, depth=4)
    trees = [branching_tree([k] * levels) for k in range(2, 18) for levels in range(1, 5) if k**levels < 300]
    reached = max(expected_tokens(tree, vector) for tree in trees if tree.size <= 300)
    assert found == pytest.approx(b) and tokens[-1] == pytest.approx(reached)
    assert theorem_bound(AcceptanceVector(np.array([0.5])), max_size=8, depth=4) is None  # one rank follows no law
    assert theorem_bound(AcceptanceVector(np.zeros(3)), max_size=8, depth=4) is None


def test_a_band_holds_the_table():
    vector = AcceptanceVector(np.array([0.5, 0.12]), trials=135)
    sizes, low, high = growth_band(bootstrap_tables(vector, max_size=16, max_depth=4), depth=3)
    table = expected_tokens_table(vector, max_size=16, max_depth=4)
    assert ((low <= table[sizes, 3]) & (table[sizes, 3] <= high)).all() and (low[1:] < high[1:]).all()


def test_the_next_node_adds_what_the_table_says():
    assert next_node_value(TABLE, size=5, depth=4) == pytest.approx(TABLE[6, 4] - TABLE[5, 4])
    assert next_node_value(TABLE, size=64, depth=4) is None  # off the table
    assert next_node_value(TABLE, size=5, depth=9) is None
    assert next_node_value(TABLE, size=4, depth=1) is None  # three ranks leave no place for a fifth node
