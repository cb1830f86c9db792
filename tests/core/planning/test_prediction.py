"""Predicted speedups and the coverage of their intervals."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import (
    Prediction,
    best_chain,
    fastest_chains,
    predict,
    predicted_speedup,
    prompts_for,
    tokens_estimate,
)
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.reasons import Measured, Reason, context_reason, reasons
from sequoia_core.planning.step_time import StepTime
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_tree, independent_chains
from sequoia_core.trees.replay import replay
from tests.core.trees.test_replay import RAGGED, with_texts

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
    """Return accepted ranks of prompts that differ in how well they are drafted."""
    skills = rng.beta(6, 3, prompts)
    return [rng.choice(3, length, p=[0.8 * (1 - s), s, 0.2 * (1 - s)]) for s in skills]


def test_prediction_without_samples_follows_the_formula():
    vector = AcceptanceVector(np.array([0.6, 0.2]))
    found = predict(RAGGED, vector, profile())
    step = 1.5 + (2.0 - 1.5) * 2 / 8 + 4 * 0.1
    assert found.speedup.value == pytest.approx(expected_tokens(RAGGED, vector) / step)
    assert found.speedup.value == predicted_speedup(RAGGED, vector, profile())
    assert found.speedup.low is None and found.holds(2.0) is None and not found.replayed
    assert found.paper_speedup == pytest.approx(found.speedup.value)  # one token per level: both formulas agree


def test_texts_are_replayed_and_finite_runs_widen_the_interval():
    rng = np.random.default_rng(0)
    vector = with_texts(texts(rng, 100))
    timed = profile(rng)
    found, race = (predict(RAGGED, vector, timed, prompts=count) for count in (None, 20))
    assert found.replayed and found.tokens_per_step.value == replay(RAGGED, vector).tokens_per_step
    assert race.speedup.value == found.speedup.value
    widths = [p.speedup.high - p.speedup.low for p in (found, race)]
    one = predict(RAGGED, with_texts(texts(rng, 1)), timed).speedup
    assert one.low is None  # timing rounds alone give no interval over texts
    assert widths[1] > 1.8 * widths[0] and found.holds(found.speedup.value) and not found.holds(2 * found.speedup.value)


@pytest.mark.slow
def test_intervals_have_the_stated_coverage():
    """Of 200 predictions at 95 %, fewer than 180 are correct once in a thousand tests."""
    rng, inside = np.random.default_rng(1), 0
    tree, alone = chain_tree(4), profile()
    for _ in range(200):
        vector = with_texts(texts(rng, 60))
        measured = replay(tree, with_texts(texts(rng, 30))).tokens_per_step
        bounds = predict(tree, vector, alone, prompts=30).tokens_per_step
        inside += bounds.low <= measured <= bounds.high
    assert 180 <= inside <= 199


def test_prompts_for_an_interval_width():
    rng = np.random.default_rng(2)
    vector, tree = with_texts(texts(rng, 200)), chain_tree(4)
    wanted = prompts_for(tree, vector, within=0.05)
    enough = predict(tree, with_texts(texts(rng, wanted)), profile()).tokens_per_step
    assert (enough.high - enough.low) / 2 / enough.value == pytest.approx(0.05, rel=0.35)
    assert prompts_for(tree, AcceptanceVector(np.array([0.5]))) is None


def test_short_runs_have_wider_intervals():
    timed, vector = profile(np.random.default_rng(3)), AcceptanceVector(np.array([0.6, 0.2]))
    widths = []
    for prompts in (None, 400, 4):
        found = predict(RAGGED, vector, timed, prompts=prompts)
        assert found.tokens_per_step.low is None  # timing rounds still give the speedup an interval
        assert predict(RAGGED, vector, PROFILE, prompts=prompts).speedup.low is None
        widths.append(found.speedup.high - found.speedup.low)
    assert 0 < widths[0] < widths[1] < 0.6 * widths[2] and widths[0] < 0.2 * found.speedup.value


@pytest.mark.parametrize(("rank", "per_step", "bound"), [(1, 2.0, "low"), (0, 1.0, "high")])
def test_identical_steps_still_have_an_interval(rank, per_step, bound):
    """Up to about 3 / n of the steps may differ; the tree's only child is accepted always or never."""
    vector = with_texts([np.full(64, rank)] * 4, width=1)
    steps = 256 / per_step
    for estimate in (tokens_estimate(chain_tree(1), vector), predict(chain_tree(1), vector, PROFILE).tokens_per_step):
        assert estimate.value == per_step
        change = getattr(estimate, bound) - per_step
        assert abs(change) == pytest.approx(1 - 0.05 ** (1 / steps)) and (change < 0) == (bound == "low")


def test_plans_for_short_answers_use_shallower_trees():
    """If everything is accepted, a deep tree drafts beyond the end of an answer of 6 tokens."""
    vector = with_texts([np.ones(64, int)] * 4, width=1)
    short = vector.for_answer_length(6)
    assert short.trials == 24 and short.prompt_trials.tolist() == [6] * 4
    assert tokens_estimate(chain_tree(5), short).value == tokens_estimate(chain_tree(11), short).value == 6
    cheap = HardwareProfile([1, 32], [1.0, 1.5], 0.01)
    assert plan_tree(short, cheap).depth <= 8 < plan_tree(vector, cheap).depth
    with pytest.raises(ValueError, match="needs the accepted rank at every position"):
        AcceptanceVector([0.5]).for_answer_length(6)


def test_best_chain_is_optimal_and_below_the_planned_tree():
    chain = best_chain(VECTOR, PROFILE)
    best = predicted_speedup(chain, VECTOR, PROFILE)
    for length in (chain.depth - 1, chain.depth + 1):
        assert predicted_speedup(chain_tree(length), VECTOR, PROFILE) <= best
    assert predicted_speedup(plan_tree(VECTOR, PROFILE), VECTOR, PROFILE) >= best
    chains = predicted_speedup(fastest_chains(VECTOR, PROFILE), VECTOR, PROFILE)
    usual = [independent_chains(k, length) for k in (2, 5) for length in (2, 4)]
    assert chains >= max(predicted_speedup(tree, VECTOR, PROFILE) for tree in usual)


PREDICTED = Prediction(
    speedup=Estimate(2.0, None, None), tokens_per_step=Estimate(3.0, None, None), step=StepTime(0.010, 0.004, 0.001),
    autoregressive_sec=0.010, paper_speedup=2.2, replayed=False,
)  # fmt: skip


def test_reasons_multiply_to_the_total_difference():
    found = reasons(PREDICTED, Measured(2.4, StepTime(0.013, 0.005, 0.002), 0.011))
    assert prod(reason.effect for reason in found) == pytest.approx(2.4 * 0.011 / 0.020 / 2.0)
    assert [reason.part for reason in found][0] == "acceptance" and found[-1].part == "baseline"
    assert [reason.effect for reason in found] == sorted(reason.effect for reason in found)


def test_small_effects_are_not_reasons():
    assert reasons(PREDICTED, Measured(3.0, StepTime(0.010, 0.004, 0.001), 0.010)) == []
    (reason,) = reasons(PREDICTED, Measured(3.02, StepTime(0.010, 0.008, 0.001)))
    assert reason == Reason("drafting", pytest.approx(15 / 19), 0.004, 0.008)
    both = reasons(PREDICTED, Measured(3.0, StepTime(0.008, 0.006, 0.0011)))  # opposite effects
    assert {reason.part for reason in both} == {"drafting", "verifying"}


def test_context_reason_requires_a_noticeable_effect():
    slower = replace(PREDICTED, speedup=Estimate(1.8, None, None))
    found = context_reason(PREDICTED, slower, profiled_at=128, run_at=900)
    assert found == Reason("context", pytest.approx(0.9), 128, 900)
    assert context_reason(PREDICTED, PREDICTED, profiled_at=128, run_at=900) is None
