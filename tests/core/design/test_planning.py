"""Planning: the surface against its formula, its limits, and the shapes that must win."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens, expected_tokens_table, optimal_tree
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import (
    SpeedupSurface,
    best_shape,
    fastest_of_sizes,
    more_ranks_wanted,
    plan_on,
    plan_tree,
    size_and_depth_spread,
    smallest_good_shape,
    speedup_surface,
)
from sequoia_core.design.prediction import predicted_speedup
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.replay import replay
from tests.core.design.test_replay import with_texts

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))


def profile(verify_sec=(1.0, 1.1, 2.0), draft_sec=0.05, widths=(), width_sec=()) -> HardwareProfile:
    return HardwareProfile(
        sizes=np.array([1, 8, 32]),
        verify_sec=np.array(verify_sec),
        draft_sec=draft_sec,
        draft_widths=np.array(widths, dtype=np.int64),
        draft_width_sec=np.array(width_sec, dtype=np.float64),
    )


def test_surface_is_its_formula():
    surface = speedup_surface(VECTOR, profile(), max_depth=6)
    assert surface.speedup.shape == surface.expected_tokens.shape == (33, 7)
    assert (surface.max_size, surface.max_depth) == (32, 6)
    assert surface.speedup[1, 0] == 1.0
    t_20 = 1.1 + (2.0 - 1.1) * (20 - 8) / (32 - 8)
    assert surface.speedup[20, 4] == pytest.approx(surface.expected_tokens[20, 4] / (t_20 + 4 * 0.05))
    np.testing.assert_array_equal(np.isnan(surface.speedup), np.isneginf(surface.expected_tokens))
    assert np.isnan(surface.speedup[0]).all() and np.isnan(surface.speedup[2:, 0]).all()
    assert np.isnan(surface.speedup[5, 1]) and not np.isnan(surface.speedup[4, 1])  # three ranks: four nodes at most


def test_a_tree_scores_as_its_place_on_the_surface():
    for measured in (profile(), profile(widths=(1, 4, 8), width_sec=(0.05, 0.1, 0.3))):
        surface = speedup_surface(VECTOR, measured, max_depth=8)
        for size, depth in ((1, 8), (2, 8), (7, 2), (20, 8), (32, 4), (32, 8)):
            tree = optimal_tree(VECTOR, size=size, depth=depth)
            place = surface.speedup[tree.size, tree.depth]
            assert predicted_speedup(tree, VECTOR, measured) == pytest.approx(place)
    assert more_ranks_wanted(tree, VECTOR).startswith("The tree uses all 3 ranks")
    assert more_ranks_wanted(chain_tree(4), VECTOR) is None


def test_the_papers_formula_prices_every_draft_pass_as_one_token():
    measured = profile(widths=(1, 3), width_sec=(0.05, 0.15))
    surface = speedup_surface(VECTOR, measured, max_depth=6, paper=True)
    place = surface.expected_tokens[20, 4] / (float(measured.t(20)) + 4 * 0.05)
    assert surface.speedup[20, 4] == pytest.approx(place)
    assert speedup_surface(VECTOR, measured, max_depth=6).speedup[20, 4] < place


def test_a_vector_with_texts_is_planned_by_what_trees_yield_along_them():
    rng = np.random.default_rng(0)
    easy, hard = rng.choice(4, 400, p=[0.05, 0.9, 0.04, 0.01]), rng.choice(4, 400, p=[0.6, 0.2, 0.1, 0.1])
    vector = with_texts([easy, hard])  # a hard text takes more steps than an average one saves
    measured = profile()
    surface = speedup_surface(vector, measured, max_depth=8)
    tree = optimal_tree(vector, size=9, depth=8)
    assert surface.expected_tokens[9, 8] == pytest.approx(replay(tree, vector).tokens_per_step, rel=0.02)
    assert surface.expected_tokens[9, 8] < 0.99 * expected_tokens(tree, vector)


def test_best_shape_is_the_largest_entry_and_the_smallest_good_one_gives_little_away():
    surface = speedup_surface(VECTOR, profile())
    best, small = best_shape(surface), smallest_good_shape(surface)
    assert best.predicted_speedup == np.nanmax(surface.speedup) > 1
    assert best.expected_tokens == surface.expected_tokens[best.size, best.depth]
    assert small.size <= best.size and small.predicted_speedup >= 0.98 * best.predicted_speedup
    assert np.nanmax(surface.speedup[: small.size]) < 0.98 * best.predicted_speedup
    speedup = np.full((4, 4), np.nan)
    speedup[1, 0], speedup[2, 2], speedup[2, 3], speedup[3, 1] = 1.0, 1.5, 1.5, 1.5
    assert best_shape(SpeedupSurface(np.ones((4, 4)), speedup))[:2] == (2, 2)  # of equals the smallest and shallowest
    speedup[2, 2], speedup[3, 1] = 1.48, 1.51  # both shapes of two nodes are good enough
    assert smallest_good_shape(SpeedupSurface(np.ones((4, 4)), speedup))[:2] == (2, 3)


@pytest.mark.parametrize("verify_sec", [(1.0, 1.1, 2.0), (1.0, 8.0, 32.0)])
def test_speculation_that_does_not_pay(verify_sec):
    dear = profile(verify_sec, draft_sec=1.0)
    assert best_shape(speedup_surface(VECTOR, dear)) == (1, 0, 1.0, 1.0)


def test_sizes_beyond_the_profile_are_refused():
    with pytest.raises(ValueError, match="found 33, expected at most 32"):
        speedup_surface(VECTOR, profile(), max_size=33)
    assert speedup_surface(VECTOR, profile(), max_size=1, max_depth=0).speedup.tolist()[1] == [1.0]


def test_spread_is_read_off_the_resamples_at_its_level():
    """Twenty-one resamples: nineteen like the vector, two that want a wide tree of the same size."""
    flat = HardwareProfile(sizes=[1, 4], verify_sec=[1.0, 1.0], draft_sec=0.1)
    probs = [0.9, 0.0, 0.0], [0.32, 0.32, 0.32], [0.3, 0.3, 0.3]
    deep, wide, poor = (expected_tokens_table(AcceptanceVector(np.array(p)), max_size=4, max_depth=3) for p in probs)
    vector, tables = AcceptanceVector(np.array(probs[0])), np.array([deep] * 19 + [wide, poor])
    spread = size_and_depth_spread(vector, flat, tables)
    assert spread.chosen[:2] == (4, 3) and spread.sizes == (4, 4)
    assert spread.agreement == pytest.approx(19 / 21)  # of size and depth
    # what the chosen shape's time buys under the three, and the star's: a star of four is all that the wide ones want
    chosen = [(1 + 3 * 0.3) / 1.3, (1 + 3 * 0.32) / 1.3, (1 + 0.9 + 0.81 + 0.729) / 1.3]
    star = [(1 + 3 * 0.3) / 1.1, (1 + 3 * 0.32) / 1.1]
    # of 21 the 2.5 % lie halfway between the lowest and the next, the 95 % on the highest but one
    assert spread.speedup == pytest.approx(((chosen[0] + chosen[1]) / 2, chosen[2]))
    assert spread.worst_loss == pytest.approx(star[0] - chosen[0])  # the other loses more


def test_a_plan_for_llama_cpp_has_no_more_leaves_than_it_has_sequences():
    flat = AcceptanceVector([0.02] * 40)  # every child adds as much as any other: the best tree is nearly a star
    free = HardwareProfile(sizes=np.array([1, 1024]), verify_sec=np.array([1.0, 1.01]), draft_sec=0.001)
    limited = replace(free, meta={"passes_by": "llama.cpp"})
    assert plan_tree(flat, free).leaves > 256
    assert limited.most_leaves == 256 and free.most_leaves is None
    for sizes in (1024, 400, 270):
        surface = speedup_surface(flat, limited, max_size=sizes)
        shape, tree = plan_on(surface, flat, limited)
        assert 200 < tree.leaves <= 256 and tree == plan_tree(flat, limited, max_size=sizes)
        assert shape.size == tree.size and shape.predicted_speedup == np.nanmax(surface.speedup[: shape.size + 1])
        assert shape == fastest_of_sizes(surface, shape.size, shape.size)
    assert fastest_of_sizes(surface, 5, 9).predicted_speedup == np.nanmax(surface.speedup[5:10])
