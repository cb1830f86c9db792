"""The dynamic program against exhaustive enumeration, the fast path against the program, and known limits."""

from functools import cache

import numpy as np
import pytest

from sequoia_core.acceptance import AcceptanceVector
from sequoia_core.construction import (
    best_expected_tokens,
    branching_tree,
    chain_limit,
    chain_tree,
    expected_tokens,
    expected_tokens_table,
    independent_chains,
    k_ary_tree,
    node_scores,
    optimal_tree,
)
from sequoia_core.tree import TokenTree


@cache
def forests(nodes: int, depth: int, ranks: int) -> tuple[tuple, ...]:
    """All ordered forests of exactly `nodes` nodes, at most `depth` levels and at most `ranks` trees."""
    if nodes == 0:
        return ((),)
    if depth == 0 or ranks == 0:
        return ()
    found = []
    for first in range(1, nodes + 1):
        for children in forests(first - 1, depth - 1, RANKS):
            for rest in forests(nodes - first, depth, ranks - 1):
                found.append((children, *rest))
    return tuple(found)


RANKS = 5


def value(forest: tuple, probs: list[float]) -> float:
    return sum(p * (1.0 + value(children, probs)) for p, children in zip(probs, forest, strict=False))


def vectors():
    generator = np.random.default_rng(0)
    for _ in range(4):
        noisy = generator.dirichlet(np.full(RANKS + 1, 0.6))[:RANKS]
        yield pytest.param(noisy, id="non-monotone")
        yield pytest.param(np.sort(noisy)[::-1], id="monotone")
    yield pytest.param(np.array([0.0, 0.5, 0.0, 0.3, 0.1]), id="zeros")
    yield pytest.param(np.zeros(RANKS), id="all zero")
    yield pytest.param(np.array([1.0, 0, 0, 0, 0]), id="certain")


@pytest.mark.parametrize("probs", vectors())
def test_table_and_tree_equal_exhaustive_enumeration(probs):
    vector = AcceptanceVector(probs)
    table = expected_tokens_table(vector, max_size=9, max_depth=4)
    for size in range(1, 10):
        for depth in range(5):
            values = [1.0 + value(forest, probs.tolist()) for forest in forests(size - 1, depth, RANKS)]
            if not values:
                assert table[size, depth] == -np.inf
                with pytest.raises(ValueError, match=f"size {size}"):
                    optimal_tree(vector, size=size, depth=depth)
                continue
            assert table[size, depth] == pytest.approx(max(values), abs=1e-12)
            tree = optimal_tree(vector, size=size, depth=depth)
            assert tree.size == size and tree.depth <= depth
            assert expected_tokens(tree, vector) == pytest.approx(table[size, depth], abs=1e-12)


def test_fast_path_equals_the_dynamic_program_on_a_monotone_vector():
    probs = np.array([0.6, 0.15, 0.07, 0.03, 0.03, 0.01])
    wiggled = np.append(probs, 0.011)  # the last rank breaks monotony; it is too weak to matter for n <= 25
    fast = expected_tokens_table(AcceptanceVector(probs), max_size=25, max_depth=8)
    exact = expected_tokens_table(AcceptanceVector(wiggled), max_size=25, max_depth=8)
    possible = np.isfinite(fast)
    assert np.all(exact[possible] >= fast[possible] - 1e-12)
    truncated = expected_tokens_table(AcceptanceVector(np.append(probs, [0.0, 1e-15])), max_size=25, max_depth=8)
    np.testing.assert_allclose(truncated[possible], fast[possible], atol=1e-12)


def test_expected_tokens_by_hand():
    vector = AcceptanceVector(np.array([0.5, 0.2]))
    tree = TokenTree(np.array([-1, 0, 0, 0, 1]))
    assert node_scores(tree, vector).tolist() == [1.0, 0.5, 0.2, 0.0, 0.25]  # rank 3 is beyond the vector
    assert expected_tokens(tree, vector) == pytest.approx(1.95)


def test_known_limits():
    vector = AcceptanceVector(np.array([0.7, 0.1]))
    assert expected_tokens(chain_tree(400), vector) == pytest.approx(chain_limit(vector)) == pytest.approx(1 / 0.3)
    assert chain_limit(AcceptanceVector(np.array([1.0]))) == np.inf
    gain = expected_tokens(independent_chains(2, 400), vector) - expected_tokens(chain_tree(400), vector)
    assert 0 < gain <= 1  # k independent chains add at most one token to one chain (paper §3.1)
    nothing = AcceptanceVector(np.zeros(3))
    assert np.all(expected_tokens_table(nothing, max_size=9, max_depth=4)[1:, 4] == 1.0)
    certain = AcceptanceVector(np.array([1.0]))
    assert expected_tokens_table(certain, max_size=9, max_depth=8)[9, 8] == 9.0


def test_plain_shapes():
    assert chain_tree(3).parents.tolist() == [-1, 0, 1, 2] and chain_tree(0).size == 1
    assert (independent_chains(5, 8).size, independent_chains(5, 8).depth) == (41, 8)
    assert k_ary_tree(2, 3).size == 15
    assert branching_tree([3, 1]).child_ranks.tolist() == [0, 1, 2, 3, 1, 1, 1]
    with pytest.raises(ValueError, match="branching"):
        branching_tree([2, 0])
    with pytest.raises(ValueError, match="100000"):
        k_ary_tree(10, 6)


def test_best_tree_may_use_as_many_ranks_as_the_tree_it_is_compared_with():
    vector = AcceptanceVector(np.array([0.5]))
    wide = branching_tree([4])
    assert best_expected_tokens(wide, vector) == pytest.approx(expected_tokens(wide, vector))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 2.5}, {"size": 5, "depth": -1}, {"size": True}])
def test_sizes_out_of_range_are_named(options):
    with pytest.raises(ValueError, match="expected a whole number"):
        optimal_tree(AcceptanceVector(np.array([0.5])), **options)


def test_table_too_large_is_refused_not_started():
    vector = AcceptanceVector(np.array([0.01, 0.02] * 16))
    with pytest.raises(ValueError, match="steps"):
        expected_tokens_table(vector, max_size=20_000, max_depth=64)
