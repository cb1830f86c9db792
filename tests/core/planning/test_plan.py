"""Speedup surfaces compared with their formula, and the choice of shapes."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.plan import (
    SpeedupSurface,
    best_shape,
    choose_plan,
    grow_profiled_trees,
    plan_tree,
    size_and_depth_spread,
    smallest_good_shape,
    speedup_surface,
    suggest_more_ranks,
    surface_from_trees,
)
from sequoia_core.planning.prediction import predicted_speedup
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.optimal import expected_tokens, expected_tokens_table, optimal_tree
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import replay
from tests.core.trees.test_replay import with_texts

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))


def profile(verify_sec=(1.0, 1.1, 2.0), draft_sec=0.05, widths=(), width_sec=()) -> HardwareProfile:
    return HardwareProfile(
        sizes=np.array([1, 8, 32]),
        verify_sec=np.array(verify_sec),
        draft_sec=draft_sec,
        draft_widths=np.array(widths, dtype=np.int64),
        draft_width_sec=np.array(width_sec, dtype=np.float64),
    )


def test_surface_follows_the_formula():
    surface = speedup_surface(VECTOR, profile(), max_depth=6)
    assert surface.speedup.shape == surface.expected_tokens.shape == (33, 7)
    assert (surface.max_size, surface.max_depth) == (32, 6)
    assert surface.speedup[1, 0] == 1.0
    t_20 = 1.1 + (2.0 - 1.1) * (20 - 8) / (32 - 8)
    assert surface.speedup[20, 4] == pytest.approx(surface.expected_tokens[20, 4] / (t_20 + 4 * 0.05))
    np.testing.assert_array_equal(np.isnan(surface.speedup), np.isneginf(surface.expected_tokens))
    assert np.isnan(surface.speedup[5, 1]) and not np.isnan(surface.speedup[4, 1])  # at most four nodes


def test_tree_speedup_matches_the_surface():
    for measured in (profile(), profile(widths=(1, 4, 8), width_sec=(0.05, 0.1, 0.3))):
        surface = speedup_surface(VECTOR, measured, max_depth=8)
        for size, depth in ((1, 8), (2, 8), (7, 2), (20, 8), (32, 4), (32, 8)):
            tree = optimal_tree(VECTOR, size=size, depth=depth)
            place = surface.speedup[tree.size, tree.depth]
            assert predicted_speedup(tree, VECTOR, measured) == pytest.approx(place)
    assert suggest_more_ranks(tree, VECTOR).startswith("The tree uses all 3 ranks")
    assert suggest_more_ranks(chain_tree(4), VECTOR) is None


def test_paper_formula_costs_each_draft_pass_as_one_token():
    measured = profile(widths=(1, 3), width_sec=(0.05, 0.15))
    surface = speedup_surface(VECTOR, measured, max_depth=6, paper=True)
    place = surface.expected_tokens[20, 4] / (float(measured.t(20)) + 4 * 0.05)
    assert surface.speedup[20, 4] == pytest.approx(place)
    assert speedup_surface(VECTOR, measured, max_depth=6).speedup[20, 4] < place


def test_surfaces_are_corrected_by_replayed_texts():
    rng = np.random.default_rng(0)
    easy, hard = rng.choice(4, 400, p=[0.05, 0.9, 0.04, 0.01]), rng.choice(4, 400, p=[0.6, 0.2, 0.1, 0.1])
    vector = with_texts([easy, hard])  # hard texts cost more steps than easy ones save
    measured = profile()
    surface = speedup_surface(vector, measured, max_depth=8)
    tree = optimal_tree(vector, size=9, depth=8)
    assert surface.expected_tokens[9, 8] == pytest.approx(replay(tree, vector).tokens_per_step, rel=0.02)
    assert surface.expected_tokens[9, 8] < 0.99 * expected_tokens(tree, vector)


def test_best_and_smallest_good_shape():
    surface = speedup_surface(VECTOR, profile())
    best, small = best_shape(surface), smallest_good_shape(surface)
    assert best.predicted_speedup == np.nanmax(surface.speedup) > 1
    assert best.expected_tokens == surface.expected_tokens[best.size, best.depth]
    assert small.size <= best.size and small.predicted_speedup >= 0.98 * best.predicted_speedup
    assert np.nanmax(surface.speedup[: small.size]) < 0.98 * best.predicted_speedup
    speedup = np.full((4, 4), np.nan)
    speedup[1, 0], speedup[2, 2], speedup[2, 3], speedup[3, 1] = 1.0, 1.5, 1.5, 1.5
    assert best_shape(SpeedupSurface(np.ones((4, 4)), speedup))[:2] == (2, 2)  # ties: smallest, then shallowest
    speedup[2, 2], speedup[3, 1] = 1.48, 1.51  # both shapes of two nodes are good enough
    assert smallest_good_shape(SpeedupSurface(np.ones((4, 4)), speedup))[:2] == (2, 3)


def test_best_shape_is_the_root_if_speculation_does_not_pay():
    assert best_shape(speedup_surface(VECTOR, profile(draft_sec=1.0))) == (1, 0, 1.0, 1.0)


def test_sizes_beyond_the_profile_are_refused():
    with pytest.raises(ValueError, match="found 33, expected at most 32"):
        speedup_surface(VECTOR, profile(), max_size=33)
    assert speedup_surface(VECTOR, profile(), max_size=1, max_depth=0).speedup.tolist()[1] == [1.0]


def test_shape_spread_over_resamples():
    """Use 21 resamples: 19 like the vector, and two whose best tree is a star of the same size."""
    flat = HardwareProfile(sizes=[1, 4], verify_sec=[1.0, 1.0], draft_sec=0.1)
    probs = [0.9, 0.0, 0.0], [0.32, 0.32, 0.32], [0.3, 0.3, 0.3]
    deep, wide, poor = (expected_tokens_table(AcceptanceVector(np.array(p)), max_size=4, max_depth=3) for p in probs)
    vector, tables = AcceptanceVector(np.array(probs[0])), np.array([deep] * 19 + [wide, poor])
    spread = size_and_depth_spread(vector, flat, tables)
    assert spread.chosen[:2] == (4, 3) and spread.sizes == (4, 4)
    assert spread.agreement == pytest.approx(19 / 21)  # of size and depth
    # Tokens per unit of time of the chosen shape under all three vectors, and of the star under the wide ones.
    chosen = [(1 + 3 * 0.3) / 1.3, (1 + 3 * 0.32) / 1.3, (1 + 0.9 + 0.81 + 0.729) / 1.3]
    star = [(1 + 3 * 0.3) / 1.1, (1 + 3 * 0.32) / 1.1]
    # Of 21 values, the 2.5 % quantile is halfway between the lowest two, and the 95 % quantile is the second highest.
    assert spread.speedup == pytest.approx(((chosen[0] + chosen[1]) / 2, chosen[2]))
    assert spread.worst_loss == pytest.approx(star[0] - chosen[0])  # the other resample loses more


def test_plans_for_llama_cpp_limit_the_number_of_leaves():
    flat = AcceptanceVector([0.02] * 40)  # all children are equal, so the best tree is nearly a star
    free = HardwareProfile(sizes=np.array([1, 1024]), verify_sec=np.array([1.0, 1.01]), draft_sec=0.001)
    limited = replace(free, meta={"passes_by": "llama.cpp"})
    assert plan_tree(flat, free).leaves > 256
    assert limited.max_leaves == 256 and free.max_leaves is None
    for sizes in (1024, 400, 270):
        trees = grow_profiled_trees(flat, limited, max_size=sizes)
        surface = surface_from_trees(trees, limited)
        shape, tree = choose_plan(surface, trees, limited)
        assert 200 < tree.leaves <= 256 and tree == plan_tree(flat, limited, max_size=sizes)
        assert shape.size == tree.size and shape.predicted_speedup == np.nanmax(surface.speedup[: shape.size + 1])
