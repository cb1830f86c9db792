from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sequoia_core.decoding.growing.expansion import DraftChances, TreeBounds
from sequoia_core.decoding.growing.recipes import predict_growing
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from sequoia_core.design.calibration import CENTRES, Calibration, Sample
from tests.conftest import calibration_of, linear_profile

profile = partial(linear_profile, draft_sec=0.2)
CHAIN = TreeBounds(max_size=4, max_depth=3, beam=1, branch=1)
TREE = TreeBounds(max_size=16, max_depth=4, beam=4, branch=4)


def predicted(calibration, bounds=TREE, times=None, **options):
    expansion = TopKExpansion(bounds, DraftChances())
    return predict_growing(expansion, bounds, calibration, times or profile(), kind="most likely", **options)


def test_a_chain_yields_what_its_chances_say_and_takes_what_its_passes_take():
    known = calibration_of(0.8, prompts=20)
    sure = known.expected("most likely")[0]
    found = predicted(known, CHAIN)
    assert found.tokens_per_step.value == pytest.approx(1 + sure + sure**2 + sure**3, rel=0.02)
    assert (found.step.verify_sec, found.step.draft_sec) == pytest.approx((1.3, 0.6))
    assert found.speedup.value == pytest.approx(found.tokens_per_step.value / 1.9)
    assert found.paper_speedup is None and not found.replayed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_longer_context_and_growing_take_what_the_profile_says(temperature):
    known, beyond = calibration_of(0.8, prompts=20, temperature=temperature), 0.25 if temperature == 0 else 0.75
    longer = {"verify_growth_sec": [0.01] * len(profile().sizes), "draft_growth_sec": 0.002, "context": 50}
    times = replace(profile(), growing_sec=[0.25, 0.75], **longer)
    short, long = (predicted(known, CHAIN, times, context=context) for context in (50, 150))
    assert (short.step.verify_sec, short.step.draft_sec) == pytest.approx((1.3, 0.6))
    assert (long.step.verify_sec, long.step.draft_sec) == pytest.approx((2.3, 1.2))
    assert short.step.overhead_sec == pytest.approx(predicted(known, CHAIN).step.overhead_sec + beyond)
    assert short.speedup.value == pytest.approx(short.tokens_per_step.value * 1.0 / (1.9 + beyond))
    assert long.speedup.value == pytest.approx(long.tokens_per_step.value * 2.0 / (3.5 + beyond))


def test_a_prompt_whose_draft_promises_too_much_counts_for_less():
    """Half of the prompts accept only half of what the draft says: theirs is the longer part of the time."""
    good = calibration_of(0.8, prompts=20)
    halved = np.where(np.arange(20) % 2 == 0, 1.0, 0.5)
    mixed = Calibration(
        good.counts, good.accepted * halved[:, None, None], good.positions,
        good.accepted_by_rank * halved[:, None, None], good.rows,
    )  # fmt: skip
    sure = good.expected("most likely")[0]
    steps = [1 / (1 + a + a**2 + a**3) for a in (sure, sure / 2)]
    assert predicted(mixed, CHAIN).tokens_per_step.value == pytest.approx(2 / sum(steps), rel=0.04)
    wide, narrow = (predicted(c).tokens_per_step for c in (mixed, good))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


@pytest.mark.slow
def test_few_trees_for_each_prompt_do_not_make_its_steps_more():
    """The inverse of a noisy mean is too large: by 1.3 % here, if nothing made up for it."""
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(300):
        probs = generator.permutation(np.repeat([CENTRES[1], CENTRES[-2]], 6))[:, None]  # all of them are kept
        samples.append(Sample(probs, probs, probs, probs, probs))
    known = Calibration.of_samples(samples, temperature=0.0)
    once = TreeBounds(max_size=2, max_depth=1, beam=1, branch=1)
    tokens = 1.0 + known.tables().most_likely(np.array([[CENTRES[1]], [CENTRES[-2]]])).mean()
    found = [predicted(known, once, seed=seed).tokens_per_step.value for seed in range(8)]
    assert np.mean(found) == pytest.approx(tokens, rel=0.006)


def test_intervals_narrow_with_prompts_and_widen_for_few_to_come():
    few, many = (predicted(calibration_of(0.7, prompts=count)).tokens_per_step for count in (3, 60))
    assert few.low < few.value < few.high and few.high - few.low > 2 * (many.high - many.low)
    to_come = predicted(calibration_of(0.7, prompts=60), prompts=1).tokens_per_step
    assert to_come.high - to_come.low > 4 * (many.high - many.low)


def test_without_rows_by_prompt_there_is_a_value_and_no_interval():
    known = calibration_of(0.7, prompts=3)
    pooled = Calibration(known.counts, known.accepted, known.positions, known.accepted_by_rank, known.rows[:-1])
    found, whole = predicted(pooled), predicted(known)
    assert found.tokens_per_step.low is None and found.speedup.low is None
    assert found.tokens_per_step.value == pytest.approx(whole.tokens_per_step.value, rel=0.1)


@pytest.mark.parametrize(("kind", "share"), [("most likely", 1.0), ("drawn", 0.5)])
def test_nodes_are_judged_by_the_tables_of_how_they_were_drawn(kind, share):
    """Drawn tokens that are accepted half as often as the most likely ones of the same probability."""
    probs = np.full((12, 1), CENTRES[-6])
    known = Calibration.of_samples([Sample(probs, probs, probs, probs, probs / 2)] * 20, temperature=1.0)
    found = predict_growing(TopKExpansion(CHAIN, DraftChances()), CHAIN, known, profile(), kind=kind)
    sure = share * CENTRES[-6]
    assert found.tokens_per_step.value == pytest.approx(1 + sure + sure**2 + sure**3, rel=0.02)
