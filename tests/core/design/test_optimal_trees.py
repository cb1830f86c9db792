"""The dynamic program against exhaustive enumeration, the fast path against the program, and known limits."""

from functools import cache

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.acceptance_matrix import AcceptanceMatrix
from sequoia_core.design.optimal_trees import (
    best_expected_tokens,
    best_value_within_reach,
    bootstrap_tables,
    expected_tokens,
    expected_tokens_table,
    optimal_tree,
    table_within_reach,
    tree_limit,
)
from sequoia_core.design.plain_trees import (
    beam_tree,
    best_first_tree,
    branching_tree,
    chain_limit,
    chain_tree,
    chains_limit,
    independent_chains,
    k_ary_limit,
    k_ary_tree,
)
from sequoia_core.design.planning import surface_within_reach
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.tree_comparison import regret_matrix
from sequoia_core.design.tree_search import REACH, dynamic_program


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


def value(forest: tuple, rows: list[list[float]]) -> float:
    """Expected tokens of a forest whose roots take their probabilities from rows[0], their children from rows[1], …"""
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
def test_table_and_tree_equal_exhaustive_enumeration(probs):
    vector = AcceptanceVector(probs) if probs.ndim == 1 else AcceptanceMatrix(probs)
    rows = [*vector.levels.tolist(), *[vector.levels[-1].tolist()] * 4]  # deeper than the last: as the last
    table = expected_tokens_table(vector, max_size=9, max_depth=4)
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
            assert tree.size == size and tree.depth <= depth
            assert expected_tokens(tree, vector) == pytest.approx(table[size, depth], abs=1e-12)


@pytest.mark.parametrize("cells", [1, 150])  # one level at a time, a few
def test_tables_do_not_depend_on_how_levels_are_grouped(cells, monkeypatch):
    rows = np.random.default_rng(6).dirichlet(np.full(5, 0.5), size=6)[:, :4]
    rows[::2, 1] = 0.0
    at_once = list(dynamic_program(rows, 14))
    monkeypatch.setattr("sequoia_core.design.tree_search.CACHE_CELLS", cells)
    np.testing.assert_allclose(list(dynamic_program(rows, 14)), at_once, atol=1e-14)


def test_a_rank_of_chance_0_is_possible_and_worth_nothing():
    """A child of rank 2 needs one of rank 1 first; where none fits at that size, 0 times impossible is impossible."""
    rows = np.tile([0.5, 0.0, 0.3, 0.0], (5, 1))
    almost = np.where(rows == 0.0, 1e-14, rows)
    np.testing.assert_allclose(list(dynamic_program(rows, 9)), list(dynamic_program(almost, 9)), atol=1e-12)


def test_open_depth_is_as_good_as_any():
    """The program stops at the level that no longer helps; every deeper bound gives the same value."""
    vector = AcceptanceVector(np.array([0.6, 0.05, 0.15]))
    tree = optimal_tree(vector, size=300)
    assert tree.size == 300
    assert expected_tokens(tree, vector) == expected_tokens_table(vector, max_size=300, max_depth=299)[300, 299]


def test_tables_of_a_large_sample_are_those_of_the_vector():
    probs = np.array([0.5, 0.1, 0.12])
    sure = bootstrap_tables(AcceptanceVector(probs, trials=10**6), max_size=12, max_depth=3)
    exact = expected_tokens_table(AcceptanceVector(probs), max_size=12, max_depth=3)
    assert sure.shape == (50, 13, 4) and 0 < np.abs(sure[:, 12, 3] - exact[12, 3]).max() < 0.02
    assert bootstrap_tables(AcceptanceVector(probs), max_size=12, max_depth=3) is None


def test_known_limits():
    vector = AcceptanceVector(np.array([0.7, 0.1]))
    assert expected_tokens(chain_tree(400), vector) == pytest.approx(chain_limit(vector)) == pytest.approx(1 / 0.3)
    assert chain_limit(AcceptanceVector(np.array([1.0]))) == np.inf
    gain = expected_tokens(independent_chains(2, 400), vector) - expected_tokens(chain_tree(400), vector)
    assert 0 < gain <= 1  # k independent chains add at most one token to one chain (paper §3.1)
    assert expected_tokens(independent_chains(2, 400), vector) == pytest.approx(chains_limit(vector))
    vector = AcceptanceVector(np.array([0.5, 0.2, 0.1]))
    assert tree_limit(vector) == pytest.approx(5.0) and tree_limit(AcceptanceVector(np.array([0.5, 0.5]))) == np.inf
    assert k_ary_limit(vector, 3) == pytest.approx(tree_limit(vector))
    assert 4.5 < expected_tokens(k_ary_tree(3, 10), vector) < tree_limit(vector)
    assert expected_tokens(k_ary_tree(2, 14), vector) == pytest.approx(k_ary_limit(vector, 2), rel=0.01)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "expected a whole number"),
        ({"size": 5, "depth": -1}, "expected a whole number"),
        ({"size": 8, "depth": 2}, "size 8: found no tree with at most 2 levels .* expected at most 7 nodes"),
    ],
)
def test_trees_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        optimal_tree(AcceptanceVector(np.array([0.5, 0.3])), **options)


def test_regret_is_what_the_wrong_tree_loses():
    wide, deep = AcceptanceVector(np.array([0.3, 0.3, 0.3])), AcceptanceVector(np.array([0.9]))
    regret = regret_matrix([wide, deep], size=4, depth=3)
    assert regret.lost.diagonal().tolist() == [0.0, 0.0] and (regret.lost >= 0).all()
    # the star of three children yields 1.9 under both; the chain yields 1 + .9 + .81 + .729 and 1 + .3 + .09 + .027
    assert regret.lost[0, 1] == pytest.approx(3.439 - 1.9) and regret.lost[1, 0] == pytest.approx(1.9 - 1.417)
    assert regret.worst == (0, 1) and regret.safest == 1 and regret.best.tolist() == pytest.approx([1.9, 3.439])
    assert regret.share[0, 1] == pytest.approx((3.439 - 1.9) / 3.439)
    assert regret.mean == pytest.approx((3.439 - 1.9 + 1.9 - 1.417) / 2)


def test_a_beam_keeps_the_likeliest_nodes_of_each_level_and_best_first_the_next_ones():
    vector = AcceptanceVector(np.array([0.6, 0.3, 0.05]))
    tree = beam_tree(vector, width=3, depth=2)
    assert tree.paths()[1:] == [(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)]  # .36, .18 and .18 beat .09
    assert beam_tree(vector, width=1, depth=5) == chain_tree(5) and beam_tree(vector, width=9, depth=1).size == 4
    with pytest.raises(ValueError, match="width"):
        beam_tree(vector, width=0, depth=3)
    noisy = AcceptanceVector(np.array([0.5, 0.01, 0.4]))
    assert best_first_tree(noisy, size=4).paths()[1:] == [(1,), (1, 1), (1, 1, 1)]  # .125 beats .4 behind .01
    assert best_first_tree(vector, size=50, depth=1).size == 4  # ranks run out


@pytest.mark.parametrize("probs", [[0.6, 0.2], [0.2, 0.6]])
def test_a_table_that_would_fill_memory_is_refused_before_it_is_made(probs):
    vector = AcceptanceVector(np.array(probs))
    with pytest.raises(ValueError, match="max_size 100000 and max_depth 100000: .*74.5 GiB.*at most 5,000,000"):
        expected_tokens_table(vector, max_size=100_000, max_depth=100_000)
    with pytest.raises(ValueError, match="100 tables of max_size 2000 and max_depth 400: found .*MiB"):
        bootstrap_tables(AcceptanceVector(vector.probs, trials=9), max_size=2000, max_depth=400, resamples=100)
    assert expected_tokens_table(vector, max_size=4, max_depth=90_000).shape == (5, 90_001)


def test_vectors_too_long_for_large_trees_are_searched_up_to_the_reach(monkeypatch):
    uneven = AcceptanceVector(np.tile([0.02, 0.03], 16))
    assert np.isfinite(table_within_reach(uneven, max_size=40, max_depth=4)[40, 4])
    profile = HardwareProfile(np.array([1, 256, 1024]), np.array([1.0, 2.0, 6.0]), 0.1)
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 100_000_000)
    table = table_within_reach(uneven, max_size=1024, max_depth=16)
    assert np.isfinite(table[REACH, 16]) and np.isnan(table[REACH + 1 :]).all() and table.shape == (1025, 17)
    assert surface_within_reach(uneven, profile).max_size == REACH
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 10)
    with pytest.raises(ValueError, match="expected fewer"):
        table_within_reach(uneven, max_size=REACH, max_depth=8)
    with pytest.raises(ValueError, match="expected fewer"):
        surface_within_reach(uneven, profile, max_size=40)
    assert best_value_within_reach(chain_tree(40), uneven) is None


def test_a_draft_that_is_always_right_has_no_limit():
    assert chains_limit(AcceptanceVector(np.array([1.0]))) == np.inf
    assert chains_limit(AcceptanceVector(np.array([0.5, 0.25]))) == 1 + 0.75 / 0.5
