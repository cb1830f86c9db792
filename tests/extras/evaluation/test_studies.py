"""Behavior shared by all studies: progress, cancellation, refusals, the context left after prompts."""

from functools import partial

import numpy as np
import pytest

from benchmarks.prediction_check import check_prediction
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.trees.plain import chain_tree
from sequoia_extras.evaluation.losslessness import check_losslessness
from sequoia_extras.evaluation.measure_growth import measure_growth
from sequoia_extras.evaluation.rejection_curves import measure_rejection
from sequoia_extras.evaluation.verifier_comparison import compare_verifiers
from tests.conftest import pair_of, tiny_llama
from tests.core.measuring.test_prompt_loop import PROMPTS, check_study
from tests.core.test_cancel import BELOW, LONG, SAMPLING, TREE, assert_ends_after_a_cancel


def rejection(prompts=PROMPTS, **given):
    study = measure_rejection(prompts, samplings=[SamplingConfig(), SAMPLING], width=3, max_new_tokens=6, **given)
    return max(len(curve.acceptance.prompt_trials) for curve in study.curves)


def verifiers(prompts=PROMPTS, **given):
    found = compare_verifiers(prompts, tree=chain_tree(2), samplings=[SAMPLING], max_new_tokens=6, **given)
    return max(len(run.steps) for run in found.runs)


def growth(prompts=PROMPTS, **given):
    vector = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
    study = measure_growth(prompts, acceptance=vector, sizes=(8,), max_new_tokens=6, **given)
    return max(len(point.run.steps) for point in study.points)


@pytest.mark.parametrize("study", [rejection, verifiers, growth])
def test_progress_cancel_and_refusals(study, tiny_target, tiny_draft):
    check_study(study, pair_of(tiny_target, tiny_draft))


def test_decoding_stops_at_the_drafts_context(tiny_target):
    """A draft equal to the target yields a full chain in every step, until trees would be cut."""
    options = {"tree": chain_tree(3), "samplings": [SamplingConfig(0.0)], "max_new_tokens": 60}
    options["pair"] = pair_of(tiny_target, tiny_llama(1, context=24))
    with pytest.warns(UserWarning, match="left out 82 of 120 positions, after 2 of 2 prompts, .* minus 3 tree levels"):
        runs = compare_verifiers([[3, 1, 4], [9]], **options).runs
    assert runs[0].committed.tolist() == [18, 20] and runs[0].tokens_per_step.value == 4.0
    with pytest.raises(ValueError, match="prompt: found 21 tokens, expected at most 20: the 24-token context of tiny"):
        compare_verifiers([[1] * 21], **options)


WORKS = {
    "rejection": (partial(measure_rejection, [LONG], samplings=[SAMPLING], width=4, max_new_tokens=2), 0, 0),
    "verifiers": (partial(compare_verifiers, [LONG], tree=TREE, samplings=[SAMPLING], max_new_tokens=3), *BELOW),
    "static": (
        partial(check_prediction, [LONG] * 2, [LONG[1:]] * 2, tree=TREE, sampling=SAMPLING, max_new_tokens=3),
        *BELOW,
    ),
    "losslessness": (  # tests the samples it has, which takes passes over the compared tokens
        partial(check_losslessness, LONG, tree=TREE, sampling=SAMPLING, samples=3, new_tokens=2),
        99,
        2,
    ),
}


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("name", WORKS)
def test_no_pass_starts_after_a_cancel(name, full):
    assert_ends_after_a_cancel(*WORKS[name], full)
