"""What a step of a dynamic tree costs, also where weights stream in while it is drafted and computed."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.decoding.growing.expansion import TreeBounds
from sequoia_core.decoding.growing.recipes import LOWEST_THRESHOLD, RECIPES, Controller, expectation, grown_on_rows
from sequoia_core.decoding.growing.step_costs import CONTEXT_STEP, RunCosts, StepCosts
from sequoia_core.design.calibration import Calibration, Sample
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.step_time import step_parts
from tests.conftest import calibration_of, linear_profile

STREAMED = HardwareProfile(
    sizes=[1, 32, 64], verify_sec=[1.5, 1.5, 3.0], draft_sec=0.1, overhead_sec=[0.01, 0.02, 0.04],
    growing_sec=[0.03, 0.06],
    meta={"streaming": {"layers": 10, "buffers": 4, "layer_read_sec": 0.15}},
)  # fmt: skip
IN_MEMORY = replace(STREAMED, meta={})


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("profile", [STREAMED, IN_MEMORY], ids=["streamed", "in memory"])
@pytest.mark.parametrize("size, passes", [(1, 0), (8, 3), (8, 12), (40, 3), (64, 3), (64, 12)])
def test_a_step_takes_what_its_prediction_says(size, passes, profile, greedy):
    costs = StepCosts.of_profile(profile, TreeBounds(max_size=64, max_depth=12, beam=16, branch=8), greedy=greedy)
    widths = [1] * passes
    parts = step_parts(np.array(size), np.array(widths, dtype=int), profile, greedy=greedy, growing=True)
    assert costs.seconds(size, widths) == pytest.approx(float(sum(parts)))


def test_while_weights_stream_in_nodes_cost_what_the_step_takes_without_drafting():
    bounds = TreeBounds(max_size=64, max_depth=12, beam=16, branch=8)
    costs = StepCosts.of_profile(STREAMED, bounds, greedy=True)
    np.testing.assert_allclose(costs.step_sec[1:], [costs.seconds(size, []) for size in range(1, 65)])
    assert costs.step_sec[30] == costs.step_sec[1] < costs.step_sec[40]  # reading takes longer; computing does
    assert 0.0 < costs.token_costs(2.0).draft[1] < 2.0 * 0.1  # a draft pass hides or it does not
    in_memory = StepCosts.of_profile(IN_MEMORY, bounds, greedy=True)
    assert in_memory.token_costs(2.0).draft[1] == pytest.approx(2.0 * 0.1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_expected_of_ranks_is_of_the_tokens_that_a_recipe_takes(recipe):
    probs = np.tile([0.6, 0.3, 0.1], (10, 1))
    known = Calibration.of_samples([Sample(probs, probs, probs, probs, probs / 2)], temperature=1.0)
    bounds = TreeBounds(max_size=8, max_depth=3, beam=4, branch=2)
    found = RECIPES[recipe].expansions(bounds, known)(Controller(0.0, 0.1, gain=0.5)).expected
    np.testing.assert_allclose(found, 0.5 * (probs if recipe == "deterministic" else probs / 2)[0, :2])


@pytest.mark.slow
@pytest.mark.parametrize(("sharpness", "per_node"), [(0.6, 0.02), (0.8, 0.1)])
def test_trees_are_expected_to_be_held_to_the_best_rate_there_is(sharpness, per_node):
    """At the rate of single tokens, nodes would look too cheap: trees twice as large, and 5 to 8 % slower."""
    known, bounds = calibration_of(sharpness), TreeBounds(max_size=40, max_depth=8, beam=8, branch=4)
    costs = StepCosts.of_profile(linear_profile(per_node), bounds, greedy=True)
    make = RECIPES["deterministic"].expansions(bounds, known)

    def rate(theta: float) -> float:
        generator = np.random.default_rng(0)
        made = make(Controller(theta, LOWEST_THRESHOLD), costs.token_costs(theta))
        grown = [grown_on_rows(made, bounds, known.rows, generator) for _ in range(60)]
        seconds = sum(costs.seconds(nodes.size, widths) for nodes, widths in grown)
        return sum(float(nodes.scores.sum()) for nodes, _ in grown) / seconds

    best = max(map(rate, np.linspace(0.5, 4.0, 15)))
    assert expectation(RECIPES["deterministic"], bounds, known, costs).tokens_per_sec == pytest.approx(best, rel=0.02)


def test_costs_are_asked_again_after_so_many_committed_tokens():
    asked, profile = [], linear_profile(0.1)
    bounds = TreeBounds(max_size=8, max_depth=4, beam=4, branch=3)

    def costs_at(context):
        asked.append(context)
        return StepCosts.of_profile(profile, bounds, greedy=True)

    costs = RunCosts(costs_at)
    for context in (10, 10 + CONTEXT_STEP - 1, 10 + CONTEXT_STEP, 11 + CONTEXT_STEP):
        costs.token_costs(context)
    assert asked == [10, 10 + CONTEXT_STEP]
