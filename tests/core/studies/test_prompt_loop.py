"""What all studies share: progress, cancel, refusals, the room after prompts."""

import threading

import numpy as np
import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.files.faults import Cancelled
from sequoia_core.studies.measure_acceptance import measure_acceptance
from sequoia_core.studies.measure_growth import measure_growth
from sequoia_core.studies.race import race
from sequoia_core.studies.rejection_curves import measure_rejection
from sequoia_core.studies.verifier_comparison import compare_verifiers
from tests.conftest import pair_of, tiny_llama

PROMPTS, SAMPLING = [[1, 2, 3], [9], [4, 8, 15]], SamplingConfig(2.0)


def acceptance(prompts=PROMPTS, **given):
    return len(measure_acceptance(prompts, width=4, max_new_tokens=6, **given).prompt_trials)


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


ON_PROMPTS = (acceptance, rejection, verifiers, growth)


@pytest.mark.parametrize("study", ON_PROMPTS)
def test_progress_goes_to_the_end_and_a_cancel_keeps_whole_prompts(study, tiny_target, tiny_draft):
    pair, told, stop = pair_of(tiny_target, tiny_draft), [], threading.Event()
    assert study(pair=pair, progress=lambda share, words: told.append(share)) == 3
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)
    assert study(pair=pair, progress=lambda share, words: share > 0.5 and stop.set(), cancel=stop) == 1
    with pytest.raises(Cancelled, match="cancelled"):
        study(pair=pair, cancel=stop)


def test_what_takes_two_models_refuses_one_and_what_takes_prompts_refuses_none(tiny_target, tiny_draft):
    for study in ON_PROMPTS:
        with pytest.raises(ValueError, match=r"^draft: found none.*, expected a draft model"):
            study(pair=pair_of(tiny_target))
        with pytest.raises(ValueError, match="prompts"):
            study(pair=pair_of(tiny_target, tiny_draft), prompts=[])


def test_nothing_beyond_the_drafts_context_is_measured(tiny_target):
    """A draft that is the target yields a whole chain in every step, up to where trees would be cut."""
    draft, prompts = tiny_llama(1, context=24), [[3, 1, 4], [9]]
    models, sampling = {"pair": pair_of(tiny_target, draft)}, SamplingConfig(0.0)
    with pytest.warns(UserWarning, match="found 82 of 120 positions, after 2 of 2 prompts, .* less 3 levels"):
        runs = compare_verifiers(prompts, **models, tree=chain_tree(3), samplings=[sampling], max_new_tokens=60).runs
    assert runs[0].committed.tolist() == [18, 20] and runs[0].tokens_per_step.value == 4.0
    with pytest.warns(UserWarning, match="found 76 of 120 positions, after 2 of 2 prompts, beyond 24, the context of"):
        assert measure_acceptance(prompts, **models, max_new_tokens=60).trials == 21 + 23
    with pytest.warns(UserWarning, match="found 76 of 120 positions"):
        found = race(models["pair"], prompts, trees={"chain": chain_tree(3)}, sampling=sampling, max_new_tokens=60)
    assert {name: result.tokens for name, result in found.items()} == dict.fromkeys(found, [21, 21])
    with pytest.raises(ValueError, match="prompt: found 21 tokens, expected at most 20: 24, the context of tiny"):
        compare_verifiers([[1] * 21], **models, tree=chain_tree(3), samplings=[sampling])
