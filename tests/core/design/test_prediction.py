"""Predictions: their value, and intervals that contain what they claim to contain."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import best_chain, predict, predicted_speedup, prompts_for
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.replay import replay
from tests.core.design.test_replay import RAGGED, with_texts


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
    assert (
        found.speedup.value
        == pytest.approx(expected_tokens(RAGGED, vector) / step)
        == predicted_speedup(RAGGED, vector, profile())
    )
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


def test_rounds_of_timing_alone_give_an_interval():
    found = predict(RAGGED, AcceptanceVector(np.array([0.6, 0.2])), profile(np.random.default_rng(3)))
    assert found.tokens_per_step.low is None and 0 < found.speedup.high - found.speedup.low < 0.2 * found.speedup.value


def test_a_short_run_on_an_unsteady_machine_has_a_wider_interval():
    rng, vector = np.random.default_rng(3), AcceptanceVector(np.array([0.6, 0.2]))
    widths = []
    for timed in (profile(rng), PROFILE):
        for prompts in (None, 400, 4):
            speedup = predict(RAGGED, vector, timed, prompts=prompts).speedup
            widths.append(None if speedup.low is None else speedup.high - speedup.low)
    assert widths[0] < widths[1] < 0.6 * widths[2] and widths[3:] == [None] * 3


def test_one_prompt_gives_no_interval_however_often_passes_were_timed():
    rng = np.random.default_rng(4)
    timed = profile(rng)
    for count, known in ((1, False), (2, True)):
        speedup = predict(RAGGED, with_texts(texts(rng, count)), timed).speedup
        assert (speedup.low is not None) == known


VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


def test_best_chain_beats_its_neighbours():
    chain = best_chain(VECTOR, PROFILE)
    best = predicted_speedup(chain, VECTOR, PROFILE)
    for length in (chain.depth - 1, chain.depth + 1):
        assert predicted_speedup(chain_tree(length), VECTOR, PROFILE) <= best


def test_planned_tree_beats_the_best_chain():
    tree = plan_tree(VECTOR, PROFILE)
    assert predicted_speedup(tree, VECTOR, PROFILE) >= predicted_speedup(best_chain(VECTOR, PROFILE), VECTOR, PROFILE)
