"""Both tree searches against exhaustive enumeration, and known limits."""

from functools import cache

import numpy as np
import pytest

from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.plan import grow_searchable_trees
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.comparison import regret_matrix
from sequoia_core.trees.grown import bootstrap_tables, grow_best_trees, next_node_value, searchable_table
from sequoia_core.trees.optimal import (
    SEARCHABLE_SIZE,
    best_expected_tokens,
    dynamic_program,
    expected_tokens,
    expected_tokens_table,
    optimal_tree,
)
from sequoia_core.trees.plain import (
    beam_tree,
    best_first_tree,
    branching_tree,
    chain_limit,
    chain_tree,
    chains_limit,
    independent_chains,
    k_ary_limit,
    k_ary_tree,
    medusa_tree,
    tree_limit,
)


@cache
def forests(nodes: int, depth: int, ranks: int) -> tuple[tuple, ...]:
    """Return all ordered forests of exactly `nodes` nodes, at most `depth` levels and at most `ranks` trees."""
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


def value(forest: tuple, rows: list[list[float]]) -> float:
    """Return the expected tokens of a forest; level l has the probabilities `rows[l]`."""
    return sum(p * (1.0 + value(children, rows[1:])) for p, children in zip(rows[0], forest, strict=False))


def vectors():
    generator = np.random.default_rng(0)
    for _ in range(4):
        noisy = generator.dirichlet(np.full(RANKS + 1, 0.6))[:RANKS]
        yield pytest.param(noisy, id="non-monotone")
        yield pytest.param(np.sort(noisy)[::-1], id="monotone")
    yield pytest.param(np.array([0.0, 0.5, 0.0, 0.3, 0.1]), id="zeros")
    yield pytest.param(np.zeros(RANKS), id="all zero")
    yield pytest.param(np.array([1.0, 0, 0, 0, 0]), id="certain")


def matrices():
    generator = np.random.default_rng(1)
    for levels in (2, 3, 4):
        noisy = generator.dirichlet(np.full(RANKS + 1, 0.6), size=levels)[:, :RANKS]
        yield pytest.param(noisy, id=f"{levels} levels, non-monotone")
        yield pytest.param(np.sort(noisy)[:, ::-1], id=f"{levels} levels, monotone")
    holes = noisy.copy()
    holes[1:3, [0, 3]] = 0.0
    yield pytest.param(holes, id="zeros by level")
    yield pytest.param(np.array([[0.1, 0.2, 0, 0, 0], [0, 0, 0, 0, 1.0]]), id="all below the last child")


@pytest.mark.parametrize("probs", [*vectors(), *matrices()])
def test_table_and_tree_match_exhaustive_enumeration(probs):
    vector = AcceptanceVector(probs) if probs.ndim == 1 else AcceptanceMatrix(probs)
    rows = [*vector.levels.tolist(), *[vector.levels[-1].tolist()] * 4]  # deeper levels use the last row
    table = expected_tokens_table(vector, max_size=9, max_depth=4)
    every = grow_best_trees(AcceptanceVector.from_levels(np.atleast_2d(probs)), max_size=9, max_depth=4)
    for size in range(1, 10):
        for depth in range(5):
            values = [1.0 + value(forest, rows) for forest in forests(size - 1, depth, RANKS)]
            if not values:
                assert table[size, depth] == -np.inf
                with pytest.raises(ValueError, match=f"size {size}"):
                    optimal_tree(vector, size=size, depth=depth)
                continue
            assert table[size, depth] == pytest.approx(max(values), abs=1e-12)
            tree = optimal_tree(vector, size=size, depth=depth)
            assert tree.size == size and tree.depth <= depth and every.tree(size, depth) == tree
            assert expected_tokens(tree, vector) == pytest.approx(table[size, depth], abs=1e-12)


@pytest.mark.parametrize("cells", [1, 150])  # one level at a time, then several
def test_tables_are_independent_of_level_grouping(cells, monkeypatch):
    rows = np.random.default_rng(6).dirichlet(np.full(5, 0.5), size=6)[:, :4]
    rows[::2, 1] = 0.0
    at_once = list(dynamic_program(rows, 14))
    monkeypatch.setattr("sequoia_core.trees.optimal.CACHE_CELLS", cells)
    np.testing.assert_allclose(list(dynamic_program(rows, 14)), at_once, atol=1e-14)


def test_unlimited_depth_reaches_the_optimum():
    """The program stops at the first level that changes nothing, without loss."""
    vector = AcceptanceVector(np.array([0.6, 0.05, 0.15]))
    tree = optimal_tree(vector, size=300)
    assert tree.size == 300
    assert expected_tokens(tree, vector) == expected_tokens_table(vector, max_size=300, max_depth=299)[300, 299]


def test_bootstrap_tables_of_a_large_sample_approach_the_exact_table():
    probs = np.array([0.5, 0.1, 0.12])
    sure = bootstrap_tables(AcceptanceVector(probs, trials=10**6), max_size=12, max_depth=3)
    exact = expected_tokens_table(AcceptanceVector(probs), max_size=12, max_depth=3)
    assert sure.shape == (50, 13, 4) and 0 < np.abs(sure[:, 12, 3] - exact[12, 3]).max() < 0.02
    assert bootstrap_tables(AcceptanceVector(probs), max_size=12, max_depth=3) is None


def test_plain_trees_approach_their_limits():
    vector = AcceptanceVector(np.array([0.7, 0.1]))
    assert expected_tokens(chain_tree(400), vector) == pytest.approx(chain_limit(vector)) == pytest.approx(1 / 0.3)
    assert chain_limit(AcceptanceVector(np.array([1.0]))) == np.inf
    gain = expected_tokens(independent_chains(2, 400), vector) - expected_tokens(chain_tree(400), vector)
    assert 0 < gain <= 1  # k independent chains add at most one token to one chain (paper §3.1)
    assert expected_tokens(independent_chains(2, 400), vector) == pytest.approx(chains_limit(vector))
    vector = AcceptanceVector(np.array([0.5, 0.2, 0.1]))
    assert tree_limit(vector) == pytest.approx(5.0) and tree_limit(AcceptanceVector(np.array([0.5, 0.5]))) == np.inf
    assert k_ary_limit(vector, 3) == pytest.approx(tree_limit(vector))
    assert expected_tokens(k_ary_tree(2, 14), vector) == pytest.approx(k_ary_limit(vector, 2), rel=0.01)


def test_plain_shapes():
    assert chain_tree(3).parents.tolist() == [-1, 0, 1, 2] and chain_tree(0).size == 1
    assert branching_tree([3, 1]).child_ranks.tolist() == [0, 1, 2, 3, 1, 1, 1]
    with pytest.raises(ValueError, match="100000"):
        k_ary_tree(10, 6)


def test_medusa_tree_equals_the_published_choices():
    """0-based ranks of `mc_sim_7b_63` in FasterDecoding/Medusa, medusa/model/medusa_choices.py at e2a5d20."""
    choices = (
        "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 "
        "0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
    ).split()
    tree = medusa_tree()
    assert (tree.size, tree.depth) == (64, 4)
    assert sorted("".join(str(rank - 1) for rank in path) for path in tree.paths()[1:]) == sorted(choices)


def test_best_expected_tokens_allows_ranks_beyond_the_vector():
    vector = AcceptanceVector(np.array([0.5]))
    wide = branching_tree([4])
    assert best_expected_tokens(wide, vector) == pytest.approx(expected_tokens(wide, vector))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "expected a whole number"),
        ({"size": 5, "depth": -1}, "expected a whole number"),
    ],
)
def test_invalid_sizes_and_depths_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        optimal_tree(AcceptanceVector(np.array([0.5, 0.3])), **options)


def test_regret_is_the_loss_of_the_wrong_tree():
    wide, deep = AcceptanceVector(np.array([0.3, 0.3, 0.3])), AcceptanceVector(np.array([0.9]))
    regret = regret_matrix([wide, deep], size=4, depth=3)
    assert regret.lost.diagonal().tolist() == [0.0, 0.0] and (regret.lost >= 0).all()
    # the star of three children yields 1.9 under both; the chain yields 1 + .9 + .81 + .729 and 1 + .3 + .09 + .027
    assert regret.lost[0, 1] == pytest.approx(3.439 - 1.9) and regret.lost[1, 0] == pytest.approx(1.9 - 1.417)
    assert regret.worst == (0, 1) and regret.safest == 1
    assert regret.share[0, 1] == pytest.approx((3.439 - 1.9) / 3.439)
    assert regret.mean == pytest.approx((3.439 - 1.9 + 1.9 - 1.417) / 2)


def test_beam_and_best_first_trees_by_hand():
    vector = AcceptanceVector(np.array([0.6, 0.3, 0.05]))
    tree = beam_tree(vector, width=3, depth=2)
    assert tree.paths()[1:] == [(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)]  # .36, .18 and .18 beat .09
    assert beam_tree(vector, width=1, depth=5) == chain_tree(5) and beam_tree(vector, width=9, depth=1).size == 4
    noisy = AcceptanceVector(np.array([0.5, 0.01, 0.4]))
    assert best_first_tree(noisy, size=4).paths()[1:] == [(1,), (1, 1), (1, 1, 1)]  # .125 beats .4 behind .01
    assert best_first_tree(vector, size=50, depth=1).size == 4  # ranks run out


@pytest.mark.parametrize("probs", [[0.6, 0.2], [0.2, 0.6]])
def test_tables_that_would_not_fit_in_memory_are_refused(probs):
    vector = AcceptanceVector(np.array(probs))
    with pytest.raises(ValueError, match="max_size 100000 and max_depth 100000: found .*at most 5,000,000"):
        expected_tokens_table(vector, max_size=100_000, max_depth=100_000)
    with pytest.raises(ValueError, match="max_size 4000 and max_depth 400: found 80,220,050 table entries"):
        bootstrap_tables(AcceptanceVector(vector.probs, trials=9), max_size=4000, max_depth=400)
    assert expected_tokens_table(vector, max_size=4, max_depth=90_000).shape == (5, 90_001)


def test_expensive_searches_stop_at_the_searchable_size(monkeypatch):
    uneven = AcceptanceVector(np.tile([0.02, 0.03], 16))
    profile = HardwareProfile(np.array([1, 256, 1024]), np.array([1.0, 2.0, 6.0]), 0.1)
    monkeypatch.setattr("sequoia_core.trees.optimal.MAX_PROGRAM_STEPS", 100_000_000)
    table = searchable_table(uneven, max_size=1024, max_depth=16)
    assert (
        np.isfinite(table[SEARCHABLE_SIZE, 16])
        and np.isnan(table[SEARCHABLE_SIZE + 1 :]).all()
        and table.shape == (1025, 17)
    )
    assert len(grow_searchable_trees(uneven, profile).tokens) == SEARCHABLE_SIZE + 1
    monkeypatch.setattr("sequoia_core.trees.optimal.MAX_PROGRAM_STEPS", 10)
    with pytest.raises(ValueError, match="smaller bounds"):
        searchable_table(uneven, max_size=SEARCHABLE_SIZE, max_depth=8)


def test_next_node_value_is_the_difference_of_table_entries():
    table = expected_tokens_table(AcceptanceVector(np.array([0.6, 0.2, 0.1])), max_size=64, max_depth=8)
    assert next_node_value(table, size=5, depth=4) == pytest.approx(table[6, 4] - table[5, 4])
    assert next_node_value(table, size=64, depth=4) is None  # beyond the table
    assert next_node_value(table, size=4, depth=1) is None  # three ranks allow only four nodes
