"""The dynamic program against exhaustive enumeration, the fast path against the program, and known limits."""

import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.acceptance_matrix import AcceptanceMatrix
from sequoia_core.design.optimal_trees import (
    best_expected_tokens,
    bootstrap_tables,
    expected_tokens,
    expected_tokens_table,
    node_scores,
    optimal_tree,
    tree_limit,
)
from sequoia_core.design.plain_trees import (
    beam_tree,
    best_first_tree,
    branching_tree,
    chain_limit,
    chain_tree,
    independent_chains,
    k_ary_limit,
    k_ary_tree,
)
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_comparison import regret_matrix


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
    rows = [vector.at_level(level).tolist() for level in range(1, 6)]
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


def test_a_matrix_of_equal_rows_is_its_vector():
    probs = np.array([0.5, 0.02, 0.2, 0.1])
    vector, matrix = AcceptanceVector(probs), AcceptanceMatrix(np.tile(probs, (2, 1)))
    assert np.array_equal(
        expected_tokens_table(vector, max_size=40, max_depth=6), expected_tokens_table(matrix, max_size=40, max_depth=6)
    )


def test_open_depth_is_as_good_as_any():
    """The program stops at the level that no longer helps; every deeper bound gives the same value."""
    vector = AcceptanceVector(np.array([0.6, 0.05, 0.15]))
    tree = optimal_tree(vector, size=300)
    assert tree.size == 300
    assert expected_tokens(tree, vector) == expected_tokens_table(vector, max_size=300, max_depth=299)[300, 299]


def test_best_first_is_optimal_only_when_ranks_never_increase():
    falling, noisy = AcceptanceVector(np.array([0.5, 0.2, 0.1])), AcceptanceVector(np.array([0.5, 0.01, 0.4]))
    for vector, optimal in ((falling, True), (noisy, False)):
        tree = best_first_tree(vector, size=4, depth=2)
        best = expected_tokens_table(vector, max_size=4, max_depth=2)[4, 2]
        assert tree.size == 4 and (expected_tokens(tree, vector) == pytest.approx(best)) == optimal
    assert best_first_tree(falling, size=50, depth=1).size == 4  # ranks run out


def test_bootstrap_holds_the_spread_of_the_measurement():
    probs = np.array([0.5, 0.1, 0.12])
    sure, unsure = (
        bootstrap_tables(AcceptanceVector(probs, trials=trials), max_size=12, max_depth=3) for trials in (10**6, 100)
    )
    exact = expected_tokens_table(AcceptanceVector(probs), max_size=12, max_depth=3)
    assert sure.shape == (50, 13, 4) and np.abs(sure[:, 12, 3] - exact[12, 3]).max() < 0.02
    assert unsure[:, 12, 3].std() > 20 * sure[:, 12, 3].std()
    assert bootstrap_tables(AcceptanceVector(probs), max_size=12, max_depth=3) is None


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


def test_the_largest_tree_of_a_depth_is_named():
    with pytest.raises(ValueError, match="size 8: found no tree with at most 2 levels .* expected at most 7 nodes"):
        optimal_tree(AcceptanceVector(np.array([0.5, 0.3])), size=8, depth=2)


def test_table_too_large_is_refused_not_started():
    vector = AcceptanceVector(np.array([0.01, 0.02] * 16))
    with pytest.raises(ValueError, match="steps"):
        expected_tokens_table(vector, max_size=50_000, max_depth=64)


def test_regret_is_what_the_wrong_tree_loses():
    wide, deep = AcceptanceVector(np.array([0.3, 0.3, 0.3])), AcceptanceVector(np.array([0.9]))
    regret = regret_matrix([wide, deep], size=4, depth=3)
    assert regret.lost.diagonal().tolist() == [0.0, 0.0] and (regret.lost >= 0).all()
    # the star of three children yields 1.9 under both; the chain yields 1 + .9 + .81 + .729 and 1 + .3 + .09 + .027
    assert regret.lost[0, 1] == pytest.approx(3.439 - 1.9) and regret.lost[1, 0] == pytest.approx(1.9 - 1.417)
    assert regret.worst == (0, 1) and regret.safest == 1 and regret.best.tolist() == pytest.approx([1.9, 3.439])
    assert regret.share[0, 1] == pytest.approx((3.439 - 1.9) / 3.439)
    assert regret.mean == pytest.approx((3.439 - 1.9 + 1.9 - 1.417) / 2)
    with pytest.raises(ValueError, match="vectors: found none"):
        regret_matrix([], size=4, depth=3)


def test_a_beam_keeps_the_most_likely_nodes_of_each_level():
    vector = AcceptanceVector(np.array([0.6, 0.3, 0.05]))
    tree = beam_tree(vector, width=3, depth=2)
    assert tree.paths()[1:] == [(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)]  # .36, .18 and .18 beat .09
    assert beam_tree(vector, width=1, depth=5) == chain_tree(5) and beam_tree(vector, width=9, depth=1).size == 4
    with pytest.raises(ValueError, match="width"):
        beam_tree(vector, width=0, depth=3)


def test_no_tree_passes_its_limit():
    vector = AcceptanceVector(np.array([0.5, 0.2, 0.1]))
    assert tree_limit(vector) == pytest.approx(5.0) and tree_limit(AcceptanceVector(np.array([0.5, 0.5]))) == np.inf
    assert 4.5 < expected_tokens(k_ary_tree(3, 10), vector) < tree_limit(vector)
    assert k_ary_limit(vector, 3) == pytest.approx(tree_limit(vector))
    assert expected_tokens(k_ary_tree(2, 14), vector) == pytest.approx(k_ary_limit(vector, 2), rel=0.01)


def test_trees_transfer_between_the_shipped_vectors_as_the_readme_says():
    folder = Path(__file__).resolve().parents[3] / "assets" / "acceptance"
    names = ["demo-t0", "demo-t0.6", "reference-demo", "llama3-70b-8b-cnn"]
    regret = regret_matrix([AcceptanceVector.load(folder / f"{name}.json") for name in names], size=64, depth=8)
    assert [names[place] for place in regret.worst] == ["reference-demo", "llama3-70b-8b-cnn"]
    assert (round(regret.lost.max(), 2), round(regret.share.max(), 3)) == (0.16, 0.028)
    assert round(regret.mean, 2) == 0.05 and round(regret.lost[:2, :2].max(), 2) == 0.04


def test_a_chain_of_a_million_nodes_is_scored_and_compared_in_seconds():
    chain, vector = TokenTree(np.arange(-1, 999_999)), AcceptanceVector(np.array([0.6, 0.2, 0.1]))
    started = time.process_time()
    assert expected_tokens(chain, vector) == pytest.approx(2.5)
    assert 7 < best_expected_tokens(TokenTree(np.arange(-1, 199_999)), vector) < tree_limit(vector)
    assert time.process_time() - started < 60  # quadratic work takes many minutes


def test_scores_follow_the_paths_of_random_trees_under_vectors_and_matrices():
    generator = np.random.default_rng(5)
    by_level = AcceptanceMatrix(np.array([[0.5, 0.3], [0.4, 0.1], [0.2, 0.2]]))
    for acceptance in (AcceptanceVector(np.array([0.5, 0.0, 0.3])), by_level):
        for _ in range(20):
            tree = TokenTree(np.array([-1, *sorted(int(generator.integers(0, i)) for i in range(1, 25))]))
            for score, path in zip(node_scores(tree, acceptance), tree.paths(), strict=True):
                steps = [
                    acceptance.at_level(level)[rank - 1] if rank <= len(acceptance) else 0.0
                    for level, rank in enumerate(path, start=1)
                ]
                assert score == pytest.approx(np.prod(steps))


@pytest.mark.parametrize("probs", [[0.6, 0.2], [0.2, 0.6]])
def test_a_table_that_would_fill_memory_is_refused_before_it_is_made(probs):
    vector = AcceptanceVector(np.array(probs))
    with pytest.raises(ValueError, match="max_size 100000 and max_depth 100000: .*74.5 GiB.*at most 5,000,000"):
        expected_tokens_table(vector, max_size=100_000, max_depth=100_000)
    with pytest.raises(ValueError, match="100 tables of max_size 2000 and max_depth 400: found .*MiB"):
        bootstrap_tables(AcceptanceVector(vector.probs, trials=9), max_size=2000, max_depth=400, resamples=100)
    assert expected_tokens_table(vector, max_size=4, max_depth=90_000).shape == (5, 90_001)


def test_trees_of_2048_nodes_are_right_or_refused_within_bounds(monkeypatch):
    shipped = Path(__file__).parents[3] / "assets" / "acceptance" / "llama3-70b-8b-cnn.json"
    noisy = AcceptanceVector.load(shipped)
    assert (np.diff(noisy.probs) > 0).any()
    falling = AcceptanceVector(np.sort(noisy.probs)[::-1])
    table = expected_tokens_table(falling, max_size=2048, max_depth=24)
    for depth in (1, 5, 24):
        if np.isfinite(table[2048, depth]):
            tree = optimal_tree(falling, size=2048, depth=depth)
            assert (tree.size, tree.depth <= depth) == (2048, True)
            assert expected_tokens(tree, falling) == pytest.approx(table[2048, depth])
    assert np.isfinite(table[2048, 24]) and not np.isfinite(table[2048, 1])
    assert optimal_tree(falling, size=1, depth=0).size == 1 and optimal_tree(falling, size=3, depth=99).depth <= 2
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 300_000_000)  # of 1e10, to see it end soon
    started = time.process_time()
    with pytest.raises(ValueError, match="size 2048, .*expected fewer"):
        optimal_tree(noisy, size=2048)
    assert time.process_time() - started < 20
