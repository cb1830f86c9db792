"""Costs of a step of a dynamic tree, including streamed weights, and the estimates of recipes."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.acceptance.calibration import Calibration, Sample
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import step_parts
from sequoia_extras.dynamic_trees import recipes
from sequoia_extras.dynamic_trees.expansion import TreeBounds
from sequoia_extras.dynamic_trees.recipes import (
    MIN_THRESHOLD,
    RECIPES,
    Controller,
    best_static_tree,
    estimate_recipe,
    grow_on_rows,
    predict_growing,
)
from sequoia_extras.dynamic_trees.step_costs import CONTEXT_STEP, RunCosts, StepCosts
from tests.conftest import calibration_of, linear_profile

STREAMED = HardwareProfile(
    sizes=[1, 32, 64],
    verify_sec=[1.5, 1.5, 3.0],
    draft_sec=0.1,
    overhead_sec=[0.01, 0.02, 0.04],
    growing_sec=[0.03, 0.06],
    meta={"streaming": {"layers": 10, "buffers": 4, "layer_read_sec": 0.15}},
)
IN_MEMORY = replace(STREAMED, meta={})


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(
    "profile",
    [STREAMED, IN_MEMORY, replace(IN_MEMORY, deeper_draft_share=0.25)],
    ids=["streamed", "in memory", "drafted at once"],
)
@pytest.mark.parametrize("size, passes", [(1, 0), (8, 3), (8, 12), (40, 3), (64, 3), (64, 12)])
def test_step_seconds_match_the_predicted_parts(size, passes, profile, greedy):
    costs = StepCosts.from_profile(profile, TreeBounds(max_size=64, max_depth=12, beam=16, branch=8), greedy=greedy)
    widths = [1] * passes
    parts = step_parts(np.array(size), np.array(widths, dtype=int), profile, greedy=greedy, growing=True)
    assert costs.seconds(size, widths) == pytest.approx(float(sum(parts)))


def test_node_costs_while_weights_stream():
    bounds = TreeBounds(max_size=64, max_depth=12, beam=16, branch=8)
    costs = StepCosts.from_profile(STREAMED, bounds, greedy=True)
    np.testing.assert_allclose(costs.step_sec[1:], [costs.seconds(size, []) for size in range(1, 65)])
    assert costs.step_sec[30] == costs.step_sec[1] < costs.step_sec[40]  # bound by reading, then by computing
    assert 0.0 < costs.token_costs(2.0).draft[1] < 2.0 * 0.1  # partly hidden by reading
    in_memory = StepCosts.from_profile(IN_MEMORY, bounds, greedy=True)
    assert in_memory.token_costs(2.0).draft[1] == pytest.approx(2.0 * 0.1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_expected_chances_depend_on_the_selection(recipe):
    probs = np.tile([0.6, 0.3, 0.1], (10, 1))
    calibration = Calibration.from_samples([Sample(probs, probs, probs, probs, probs / 2)], temperature=1.0)
    bounds = TreeBounds(max_size=8, max_depth=3, beam=4, branch=2)
    found = RECIPES[recipe].expansions(bounds, calibration)(Controller(0.0, 0.1, gain=0.5)).expected
    np.testing.assert_allclose(found, 0.5 * (probs if recipe == "deterministic" else probs / 2)[0, :2])


@pytest.mark.slow
@pytest.mark.parametrize(("sharpness", "per_node"), [(0.6, 0.02), (0.8, 0.1)])
def test_estimate_reaches_the_best_possible_rate(sharpness, per_node):
    """Pricing nodes at the rate of single tokens would give trees twice as large and 5 to 8 % slower."""
    calibration = calibration_of(sharpness)
    bounds = TreeBounds(max_size=40, max_depth=8, beam=8, branch=4)
    costs = StepCosts.from_profile(linear_profile(per_node), bounds, greedy=True)
    make = RECIPES["deterministic"].expansions(bounds, calibration)

    def rate(theta: float) -> float:
        generator = np.random.default_rng(0)
        made = make(Controller(theta, MIN_THRESHOLD), costs.token_costs(theta))
        grown = [grow_on_rows(made, bounds, calibration.rows, generator) for _ in range(60)]
        seconds = sum(costs.seconds(nodes.size, widths) for nodes, widths in grown)
        return sum(float(nodes.scores.sum()) for nodes, _ in grown) / seconds

    best = max(map(rate, np.linspace(0.5, 4.0, 15)))
    assert estimate_recipe(RECIPES["deterministic"], bounds, calibration, costs).tokens_per_sec == pytest.approx(
        best, rel=0.02
    )


def test_costs_are_recomputed_as_the_context_grows():
    asked = []
    profile = linear_profile(0.1)
    bounds = TreeBounds(max_size=8, max_depth=4, beam=4, branch=3)

    def costs_at(context):
        asked.append(context)
        return StepCosts.from_profile(profile, bounds, greedy=True)

    costs = RunCosts(costs_at)
    for context in (10, 10 + CONTEXT_STEP - 1, 10 + CONTEXT_STEP, 11 + CONTEXT_STEP):
        costs.token_costs(context)
    assert asked == [10, 10 + CONTEXT_STEP]


BOUNDS = TreeBounds(max_size=9, max_depth=3, beam=3, branch=3)
COSTS = StepCosts.from_profile(linear_profile(0.05), BOUNDS, greedy=False)
NUMBERS = {  # for fixed seeds: estimates without and with costs, then a prediction
    "deterministic": (
        "3.11339 9.0 3.11339 0.0 0.594335 1.0 1.0 3.03578 8.6 1.80701 1.80701 0.277261 "
        "1.0 1.0 1.83813 1.80663 1.87631 3.12482 3.07128 3.18973"
    ),
    "sampled": (
        "2.88468 8.3 2.88468 0.0 0.0883441 1.0 1.0 2.60516 6.2 1.69166 1.69166 0.0281491 "
        "1.0 1.0 1.66385 1.64459 1.68506 2.71745 2.67529 2.7571"
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_estimates_and_predictions_are_reproducible(recipe, monkeypatch):
    """The numbers were recorded when the slow tests passed."""
    monkeypatch.setattr(recipes, "TRIAL_STEPS", 10)
    monkeypatch.setattr(recipes, "RATE_ROUNDS", 2)
    calibration = calibration_of(0.7, temperature=0.8, prompts=3)
    own = RECIPES[recipe]
    found = []
    for costs in (None, COSTS):
        each = estimate_recipe(own, BOUNDS, calibration, costs, seed=3)
        found += [each.tokens_per_step, each.size, each.value, *each.controller]
    assert estimate_recipe(own, BOUNDS, calibration, None) == estimate_recipe(own, BOUNDS, calibration, None, seed=0)
    made = own.expansions(BOUNDS, calibration)(Controller(0.8, 0.05), COSTS.token_costs(0.8))
    options = {"selection": own.selection, "context": 100.0, "prompts": 5, "seed": 2}
    foreseen = predict_growing(made, BOUNDS, calibration, linear_profile(0.05), **options)
    found += [*foreseen.speedup[:3], *foreseen.tokens_per_step[:3]]
    assert found == pytest.approx([float(number) for number in NUMBERS[recipe].split()], rel=1e-5)
    planned, each = best_static_tree(own, BOUNDS, calibration, linear_profile(0.05))
    assert planned.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3]
    assert [*each[:3], each.controller.rate] == pytest.approx([2.954878, 7.0, 1.846799, 1.846799], rel=1e-5)


def test_run_costs_track_the_rate_of_recent_steps():
    costs = RunCosts(lambda context: COSTS)
    assert costs.token_costs(1).step[:3].tolist() == pytest.approx([0.0, 1.0, 1.05])
    costs.record_step(3.0, 4, [1, 2])
    assert costs.tokens_per_sec == pytest.approx((19 + 3) / (19 + 1.15 + 0.2))
    assert costs.token_costs(2).draft[:3] == pytest.approx(0.1 * costs.tokens_per_sec * np.array([0.0, 1.0, 1.0]))
    assert costs.saved_sec(3, 4) == pytest.approx(3 - 1.15 - 1.5e-4) and costs.plain_sec() == 1.0
    begun = RunCosts(lambda context: COSTS, (2.0, 1.5))
    begun.token_costs(1)
    assert begun.tokens_per_sec == 1.5
    begun.record_step(0.0, 1)
    assert begun.tokens_per_sec == pytest.approx(38 / (0.95 * 40 / 1.5 + 1))
    for _ in range(40):
        begun.record_step(0.0, 1)
    assert begun.tokens_per_sec == 1.0, "the rate of the root alone"
