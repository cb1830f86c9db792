"""Progress, cancellation, refusals and context limits of measurements."""

import threading

import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.faults import Cancelled
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.race import race
from sequoia_core.trees.plain import chain_tree
from tests.conftest import pair_of, tiny_llama

PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]


def acceptance(prompts=PROMPTS, **given):
    return len(measure_acceptance(prompts, width=4, max_new_tokens=6, **given).prompt_trials)


def check_study(study, pair):
    """Check progress, cancellation after a whole prompt, and the refusal of a missing draft or prompt."""
    shares = []
    stop = threading.Event()
    assert study(pair=pair, progress=lambda share, words: shares.append(share)) == 3
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    assert study(pair=pair, progress=lambda share, words: share > 0.5 and stop.set(), cancel=stop) == 1
    with pytest.raises(Cancelled, match="cancelled"):
        study(pair=pair, cancel=stop)
    with pytest.raises(ValueError, match=r"^draft: found none.*, expected a draft model"):
        study(pair=pair_of(pair.target))
    with pytest.raises(ValueError, match="prompts"):
        study(pair=pair, prompts=[])


def test_acceptance_supports_progress_and_cancel(tiny_target, tiny_draft):
    check_study(acceptance, pair_of(tiny_target, tiny_draft))


def test_measurements_end_at_the_drafts_context(tiny_target):
    """A draft equal to the target completes a chain in every step, up to the end of the context."""
    draft = tiny_llama(1, context=24)
    prompts = [[3, 1, 4], [9]]
    models = {"pair": pair_of(tiny_target, draft)}
    sampling = SamplingConfig(0.0)
    with pytest.warns(
        UserWarning, match="left out 76 of 120 positions, after 2 of 2 prompts, .* exceed the 24-token context of"
    ):
        assert measure_acceptance(prompts, **models, max_new_tokens=60).trials == 21 + 23
    with pytest.warns(UserWarning, match="left out 76 of 120 positions"):
        found = race(models["pair"], prompts, trees={"chain": chain_tree(3)}, sampling=sampling, max_new_tokens=60)
    assert {name: result.tokens for name, result in found.items()} == dict.fromkeys(found, [21, 21])
