"""What bfloat16 promises through PyTorch: the target's own distribution and choice, up to the rounding of the format.

Trees and single tokens may round differently there, so a near-tie may fall the other way; nothing else may differ. The
stronger promises of the compiled passes, bit for bit, are in `test_llama_x86`.
"""

import copy

import pytest
import torch

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.design.plain_trees import branching_tree, k_ary_tree
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.core.test_families import FAMILIES, build

PROMPT = list(range(2, 22))


def shortfall(model, prompt, text):
    """Return by how much a text's tokens miss the largest logit of a plain pass over it, at most, and how much of that
    rounding can explain: twice what the same pass loses against single precision.
    """
    ids, exact = torch.tensor([[*prompt, *text]]), copy.deepcopy(model).float()
    with torch.inference_mode():
        found, precise = (m(ids).logits[0, len(prompt) - 1 : -1].float() for m in (model, exact))
    missed = found.max(-1).values - found.gather(1, torch.tensor(text)[:, None])[:, 0]
    return missed.max(), 2 * (found - precise).abs().max()


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_the_plain_passes_choice_up_to_rounding(family):
    model = build(family).to(torch.bfloat16)
    both = HuggingFaceModel(model, family, eos_ids=frozenset())
    for tree, fewest in ((k_ary_tree(2, 3), 10), (branching_tree([3, 2, 1, 1]), 8)):
        steps = list(decode(PROMPT, pair_of(both, both), tree=tree, max_new_tokens=40))
        missed, allowed = shortfall(model, PROMPT, tokens_of(steps))
        assert missed <= allowed < 0.2
        assert fewest <= len(steps) <= fewest + 2  # the draft is the target: two near-ties at most, and no wrong mask


@pytest.mark.slow
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_decoding_in_bfloat16_is_lossless_as_far_as_few_samples_tell(verifier):
    """False alarms below 1e-6: a rounding of one part in 250 is far below what 300 samples see."""
    target, draft = (
        HuggingFaceModel(tiny_llama(seed, vocab=16, layers=1, scale=1.0).model.to(torch.bfloat16), "half")
        for seed in (1, 2)
    )
    report = check_losslessness(
        [3], pair_of(target, draft), tree=branching_tree([3, 2]), sampling=SamplingConfig(1.0), verifier=verifier,
        samples=300, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert report.passed and report.degrees_of_freedom > 5
