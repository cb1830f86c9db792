"""Predictions for trees that grow, against closed forms."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sequoia_core.acceptance.calibration import BIN_CENTRES, Calibration, Sample
from sequoia_extras.dynamic_trees.expansion import DraftChances, TreeBounds
from sequoia_extras.dynamic_trees.recipes import predict_growing
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.conftest import calibration_of, linear_profile

profile = partial(linear_profile, draft_sec=0.2)
CHAIN = TreeBounds(max_size=4, max_depth=3, beam=1, branch=1)
TREE = TreeBounds(max_size=16, max_depth=4, beam=4, branch=4)


def predicted(calibration, bounds=TREE, times=None, **options):
    expansion = TopKExpansion(bounds, DraftChances())
    return predict_growing(expansion, bounds, calibration, times or profile(), selection="most likely", **options)


def test_prediction_for_a_chain_matches_its_closed_form():
    calibration = calibration_of(0.8, prompts=20)
    chance = calibration.expected("most likely")[0]
    found = predicted(calibration, CHAIN)
    assert found.tokens_per_step.value == pytest.approx(1 + chance + chance**2 + chance**3, rel=0.02)
    assert (found.step.verify_sec, found.step.draft_sec) == pytest.approx((1.3, 0.6))
    assert found.speedup.value == pytest.approx(found.tokens_per_step.value / 1.9)
    assert found.paper_speedup is None and not found.replayed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prediction_uses_profiled_context_and_growing_times(temperature):
    calibration = calibration_of(0.8, prompts=20, temperature=temperature)
    beyond = 0.25 if temperature == 0 else 0.75
    longer = {"verify_growth_sec": [0.01] * len(profile().sizes), "draft_growth_sec": 0.002, "context": 50}
    times = replace(profile(), growing_sec=[0.25, 0.75], **longer)
    short, long = (predicted(calibration, CHAIN, times, context=context) for context in (50, 150))
    assert (short.step.verify_sec, short.step.draft_sec) == pytest.approx((1.3, 0.6))
    assert (long.step.verify_sec, long.step.draft_sec) == pytest.approx((2.3, 1.2))
    assert short.step.overhead_sec == pytest.approx(predicted(calibration, CHAIN).step.overhead_sec + beyond)
    assert short.speedup.value == pytest.approx(short.tokens_per_step.value * 1.0 / (1.9 + beyond))
    assert long.speedup.value == pytest.approx(long.tokens_per_step.value * 2.0 / (3.5 + beyond))


def test_prediction_weighs_prompts_by_their_steps():
    """Half of the prompts accept only half of the promised tokens, so they take more of the steps."""
    good = calibration_of(0.8, prompts=20)
    halved = np.where(np.arange(20) % 2 == 0, 1.0, 0.5)
    mixed = Calibration(
        good.counts,
        good.accepted * halved[:, None, None],
        good.positions,
        good.accepted_by_rank * halved[:, None, None],
        good.rows,
    )
    chance = good.expected("most likely")[0]
    steps = [1 / (1 + a + a**2 + a**3) for a in (chance, chance / 2)]
    assert predicted(mixed, CHAIN).tokens_per_step.value == pytest.approx(2 / sum(steps), rel=0.04)
    wide, narrow = (predicted(c).tokens_per_step for c in (mixed, good))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_prediction_without_rows_by_prompt_has_no_interval():
    calibration = calibration_of(0.7, prompts=3)
    pooled = Calibration(
        calibration.counts,
        calibration.accepted,
        calibration.positions,
        calibration.accepted_by_rank,
        calibration.rows[:-1],
    )
    found = predicted(pooled)
    whole = predicted(calibration)
    assert found.tokens_per_step.low is None and found.speedup.low is None
    assert found.tokens_per_step.value == pytest.approx(whole.tokens_per_step.value, rel=0.1)


@pytest.mark.parametrize(("selection", "share"), [("most likely", 1.0), ("drawn", 0.5)])
def test_prediction_uses_the_tables_of_the_selection(selection, share):
    """Drawn tokens are accepted half as often as the most likely ones of the same probability."""
    probs = np.full((12, 1), BIN_CENTRES[-6])
    calibration = Calibration.from_samples([Sample(probs, probs, probs, probs, probs / 2)] * 20, temperature=1.0)
    found = predict_growing(TopKExpansion(CHAIN, DraftChances()), CHAIN, calibration, profile(), selection=selection)
    chance = share * BIN_CENTRES[-6]
    assert found.tokens_per_step.value == pytest.approx(1 + chance + chance**2 + chance**3, rel=0.02)
