"""What a step of a dynamic tree costs, also where weights stream in while it is drafted and computed."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.decoding.growing import recipes
from sequoia_core.decoding.growing.expansion import TreeBounds
from sequoia_core.decoding.growing.recipes import (
    LOWEST_THRESHOLD,
    RECIPES,
    Controller,
    best_static,
    expectation,
    grown_on_rows,
    predict_growing,
)
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


BOUNDS = TreeBounds(max_size=9, max_depth=3, beam=3, branch=3)
COSTS = StepCosts.of_profile(linear_profile(0.05), BOUNDS, greedy=False)
NUMBERS = {  # of equal seeds: expected without and with costs, and predicted
    "deterministic": [
        3.11339,
        9.0,
        3.11339,
        0.0,
        0.594335,
        1.0,
        1.0,
        3.03578,
        8.6,
        1.80701,
        1.80701,
        0.277261,
        1.0,
        1.0,
        1.83813,
        1.80663,
        1.87631,
        3.12482,
        3.07128,
        3.18973,
    ],
    "sampled": [
        2.88468,
        8.3,
        2.88468,
        0.0,
        0.0883441,
        1.0,
        1.0,
        2.60516,
        6.2,
        1.69166,
        1.69166,
        0.0281491,
        1.0,
        1.0,
        1.66385,
        1.64459,
        1.68506,
        2.71745,
        2.67529,
        2.7571,
    ],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_recipes_are_expected_to_do_is_what_it_was(recipe, monkeypatch):
    """The numbers are those of a commit whose trees the slow tests have checked."""
    monkeypatch.setattr(recipes, "TRIAL_STEPS", 10)
    monkeypatch.setattr(recipes, "ROUNDS", 2)
    known, own = calibration_of(0.7, temperature=0.8, prompts=3), RECIPES[recipe]
    found = []
    for costs in (None, COSTS):
        each = expectation(own, BOUNDS, known, costs, seed=3)
        found += [each.tokens_per_step, each.size, each.value, *each.controller]
    assert expectation(own, BOUNDS, known, None) == expectation(own, BOUNDS, known, None, seed=0)
    made = own.expansions(BOUNDS, known)(Controller(0.8, 0.05), COSTS.token_costs(0.8))
    options = {"kind": own.kind, "context": 100.0, "prompts": 5, "seed": 2}
    foreseen = predict_growing(made, BOUNDS, known, linear_profile(0.05), **options)
    found += [*foreseen.speedup[:3], *foreseen.tokens_per_step[:3]]
    assert found == pytest.approx(NUMBERS[recipe], rel=1e-5)
    planned, each = best_static(own, BOUNDS, known, linear_profile(0.05))
    assert planned.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3]
    assert [*each[:3], each.controller.theta] == pytest.approx([2.954878, 7.0, 1.846799, 1.846799], rel=1e-5)


def test_the_rate_of_a_run_follows_its_steps_from_where_it_begins():
    costs = RunCosts(lambda context: COSTS)
    assert costs.token_costs(1).step[:3].tolist() == pytest.approx([0.0, 1.0, 1.05])
    costs.seen(3.0, 4, [1, 2])
    assert costs.tokens_per_sec == pytest.approx((19 + 3) / (19 + 1.15 + 0.2))
    assert costs.token_costs(2).draft[:3] == pytest.approx(0.1 * costs.tokens_per_sec * np.array([0.0, 1.0, 1.0]))
    assert costs.saved_sec(3, 4) == pytest.approx(3 - 1.15 - 1.5e-4) and costs.plain_sec() == 1.0
    begun = RunCosts(lambda context: COSTS, (2.0, 1.5))
    begun.token_costs(1)
    assert begun.tokens_per_sec == 1.5
    begun.seen(0.0, 1)
    assert begun.tokens_per_sec == pytest.approx(38 / (0.95 * 40 / 1.5 + 1))
    for _ in range(40):
        begun.seen(0.0, 1)
    assert begun.tokens_per_sec == 1.0, "that of the root alone"
