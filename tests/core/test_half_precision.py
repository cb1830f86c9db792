"""bfloat16 in PyTorch preserves the target's choices up to rounding.

Trees and single tokens may round differently, so only near-ties may resolve differently. Compiled passes agree bit for
bit, see `test_llama_x86`.
"""

import copy

import pytest
import torch

from sequoia_core.decoding.loop import decode
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.plain import branching_tree, k_ary_tree
from tests.conftest import pair_of, tokens_of
from tests.core.test_families import FAMILIES, build

PROMPT = list(range(2, 22))
ROUNDED_ROUTES = {"DeepseekV3"}  # rounding changes which experts its random weights choose, so no small gap is allowed


def shortfall(model, prompt, text):
    """Return the largest gap between a text's tokens and the maximum logits of a plain pass, and the allowed gap.

    The allowed gap is twice the pass's largest error against single precision.
    """
    ids = torch.tensor([[*prompt, *text]])
    exact = copy.deepcopy(model).float()
    with torch.inference_mode():
        found, precise = (m(ids).logits[0, len(prompt) - 1 : -1].float() for m in (model, exact))
    missed = found.max(-1).values - found.gather(1, torch.tensor(text)[:, None])[:, 0]
    return missed.max(), 2 * (found - precise).abs().max()


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - ROUNDED_ROUTES))
def test_greedy_tokens_match_plain_passes_up_to_rounding(family):
    model = build(family).to(torch.bfloat16)
    both = HuggingFaceModel(model, family, eos_ids=frozenset())
    for tree, fewest in ((k_ary_tree(2, 3), 10), (branching_tree([3, 2, 1, 1]), 8)):
        steps = list(decode(PROMPT, pair_of(both, both), tree=tree, max_new_tokens=40))
        missed, allowed = shortfall(model, PROMPT, tokens_of(steps))
        assert missed <= allowed < 0.2
        assert fewest <= len(steps) <= fewest + 2  # the draft is the target, so only near-ties cost steps
