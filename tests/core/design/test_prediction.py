"""Predictions: their value, and intervals that contain what they claim to contain."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.bootstrap import Estimate
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import (
    Measured,
    Prediction,
    Reason,
    best_chain,
    context_reason,
    predict,
    predicted_speedup,
    prompts_for,
    reasons,
    tokens_estimate,
)
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.replay import replay
from sequoia_core.design.step_time import StepTime
from tests.core.design.test_replay import RAGGED, with_texts

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


def profile(rng=None, rounds=9) -> HardwareProfile:
    times = np.array([[1.0], [1.5], [2.0]])
    samples = () if rng is None else times * rng.lognormal(0, 0.05, (3, rounds))
    middle = times[:, 0] if rng is None else np.median(samples, axis=1)
    return HardwareProfile(
        sizes=[1, 8, 16], verify_sec=middle, draft_sec=0.1, verify_samples=tuple(map(tuple, samples))
    )


def texts(rng, prompts, length=60):
    """Prompts differ in how well they are drafted."""
    skills = rng.beta(6, 3, prompts)
    return [rng.choice(3, length, p=[0.8 * (1 - s), s, 0.2 * (1 - s)]) for s in skills]


def test_a_plain_vector_and_profile_give_the_formula():
    vector = AcceptanceVector(np.array([0.6, 0.2]))
    found = predict(RAGGED, vector, profile())
    step = 1.5 + (2.0 - 1.5) * 2 / 8 + 4 * 0.1
    assert found.speedup.value == pytest.approx(expected_tokens(RAGGED, vector) / step)
    assert found.speedup.value == predicted_speedup(RAGGED, vector, profile())
    assert found.speedup.low is None and found.holds(2.0) is None and not found.replayed
    assert found.paper_speedup == pytest.approx(found.speedup.value)  # one token per level: both formulas agree


def test_texts_are_replayed_and_the_finite_race_widens_the_interval():
    rng = np.random.default_rng(0)
    vector = with_texts(texts(rng, 100))
    timed = profile(rng)
    found, race = (predict(RAGGED, vector, timed, prompts=count) for count in (None, 20))
    assert found.replayed and found.tokens_per_step.value == replay(RAGGED, vector).tokens_per_step
    assert race.speedup.value == found.speedup.value
    widths = [p.speedup.high - p.speedup.low for p in (found, race)]
    one = predict(RAGGED, with_texts(texts(rng, 1)), timed).speedup
    assert one.low is None  # however often passes were timed
    assert widths[1] > 1.8 * widths[0] and found.holds(found.speedup.value) and not found.holds(2 * found.speedup.value)


@pytest.mark.slow
def test_intervals_contain_a_fresh_race_about_as_often_as_they_say():
    """200 calibrations and races of their own: at 95 %, fewer than 180 inside happens once in a thousand."""
    rng, inside = np.random.default_rng(1), 0
    tree, alone = chain_tree(4), profile()
    for _ in range(200):
        vector = with_texts(texts(rng, 60))
        measured = replay(tree, with_texts(texts(rng, 30))).tokens_per_step
        bounds = predict(tree, vector, alone, prompts=30).tokens_per_step
        inside += bounds.low <= measured <= bounds.high
    assert 180 <= inside <= 199


def test_the_number_of_prompts_is_that_of_the_wanted_width():
    rng = np.random.default_rng(2)
    vector, tree = with_texts(texts(rng, 200)), chain_tree(4)
    wanted = prompts_for(tree, vector, within=0.05)
    enough = predict(tree, with_texts(texts(rng, wanted)), profile()).tokens_per_step
    assert (enough.high - enough.low) / 2 / enough.value == pytest.approx(0.05, rel=0.35)
    assert prompts_for(tree, vector, within=0.1) == pytest.approx(wanted / 4, abs=1)
    assert prompts_for(tree, AcceptanceVector(np.array([0.5]))) is None


def test_a_short_run_on_an_unsteady_machine_has_a_wider_interval():
    timed, vector = profile(np.random.default_rng(3)), AcceptanceVector(np.array([0.6, 0.2]))
    widths = []
    for prompts in (None, 400, 4):
        found = predict(RAGGED, vector, timed, prompts=prompts)
        assert found.tokens_per_step.low is None  # rounds of timing alone give an interval
        assert predict(RAGGED, vector, PROFILE, prompts=prompts).speedup.low is None
        widths.append(found.speedup.high - found.speedup.low)
    assert 0 < widths[0] < widths[1] < 0.6 * widths[2] and widths[0] < 0.2 * found.speedup.value


@pytest.mark.parametrize(("rank", "per_step", "bound"), [(1, 2.0, "low"), (0, 1.0, "high")])
def test_steps_that_all_went_alike_are_not_certain(rank, per_step, bound):
    """Of n steps about 3 / n may go otherwise; here one child below the root, accepted everywhere or nowhere."""
    vector = with_texts([np.full(64, rank)] * 4, width=1)
    steps = 256 / per_step
    for estimate in (tokens_estimate(chain_tree(1), vector), predict(chain_tree(1), vector, PROFILE).tokens_per_step):
        assert estimate.value == per_step
        change = getattr(estimate, bound) - per_step
        assert abs(change) == pytest.approx(1 - 0.05 ** (1 / steps)) and (change < 0) == (bound == "low")


def test_a_plan_for_short_answers_counts_what_their_ends_cut_off():
    """Everything is accepted: the deeper the tree, the more of it is beyond the end of an answer of 6 tokens."""
    vector = with_texts([np.ones(64, int)] * 4, width=1)
    short = vector.of_answers(6)
    assert short.trials == 24 and short.prompt_trials.tolist() == [6] * 4
    assert tokens_estimate(chain_tree(5), short).value == tokens_estimate(chain_tree(11), short).value == 6
    cheap = HardwareProfile([1, 32], [1.0, 1.5], 0.01)
    assert plan_tree(short, cheap).depth <= 8 < plan_tree(vector, cheap).depth
    with pytest.raises(ValueError, match="found a vector without the ranks accepted along its texts, expected one"):
        AcceptanceVector([0.5]).of_answers(6)


def test_best_chain_beats_its_neighbours_and_a_planned_tree_beats_it():
    chain = best_chain(VECTOR, PROFILE)
    best = predicted_speedup(chain, VECTOR, PROFILE)
    for length in (chain.depth - 1, chain.depth + 1):
        assert predicted_speedup(chain_tree(length), VECTOR, PROFILE) <= best
    assert predicted_speedup(plan_tree(VECTOR, PROFILE), VECTOR, PROFILE) >= best


PREDICTED = Prediction(
    speedup=Estimate(2.0, None, None), tokens_per_step=Estimate(3.0, None, None), step=StepTime(0.010, 0.004, 0.001),
    autoregressive_sec=0.010, paper_speedup=2.2, replayed=False,
)  # fmt: skip


def test_reasons_multiply_to_the_whole_difference_and_the_largest_loss_comes_first():
    found = reasons(PREDICTED, Measured(2.4, 0.013, 0.005, 0.002, 0.011))
    assert prod(reason.effect for reason in found) == pytest.approx(2.4 * 0.011 / 0.020 / 2.0)
    assert [reason.part for reason in found][0] == "acceptance" and found[-1].part == "baseline"
    assert [reason.effect for reason in found] == sorted(reason.effect for reason in found)


def test_what_went_as_predicted_is_no_reason():
    assert reasons(PREDICTED, Measured(3.0, 0.010, 0.004, 0.001, 0.010)) == []
    (reason,) = reasons(PREDICTED, Measured(3.02, 0.010, 0.008, 0.001))
    assert reason == Reason("drafting", pytest.approx(15 / 19), 0.004, 0.008)
    both = reasons(PREDICTED, Measured(3.0, 0.008, 0.006, 0.0011))  # which cancel
    assert {reason.part for reason in both} == {"drafting", "verifying"}


def test_a_context_of_its_own_is_named_where_it_matters():
    slower = replace(PREDICTED, speedup=Estimate(1.8, None, None))
    found = context_reason(PREDICTED, slower, profiled_at=128, run_at=900)
    assert found == Reason("context", pytest.approx(0.9), 128, 900)
    assert context_reason(PREDICTED, PREDICTED, profiled_at=128, run_at=900) is None
