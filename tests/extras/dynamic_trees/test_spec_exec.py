"""SpecExec trees: the nodes of largest cumulative draft probability."""

import itertools

import numpy as np
import pytest
import torch

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from tests.conftest import pair_of, tiny_llama

pytestmark = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations
PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_tree_contains_the_most_probable_continuations(temperature):
    """Compare with an exhaustive search; beam and branch exclude nothing."""
    target, draft = (tiny_llama(seed, vocab=6, layers=1, scale=0.6) for seed in (1, 2))
    policy = SpecExecTree(max_size=20, max_depth=3, beam=36, branch=6)
    sequence = [3, 1]
    for step in decode(
        sequence,
        pair_of(target, draft),
        tree=policy,
        sampling=SamplingConfig(temperature),
        max_new_tokens=12,
        generator=torch.Generator().manual_seed(5),
    ):
        probabilities = {}
        for length in (1, 2, 3):
            texts = torch.tensor([[*sequence, *text] for text in itertools.product(range(6), repeat=length)])
            with torch.inference_mode():
                rows = (draft.model(texts[:, :-1]).logits[:, -length:] / (temperature or 1.0)).softmax(-1)
            chances = rows.gather(2, texts[:, -length:, None])[:, :, 0].prod(1)
            probabilities |= {
                tuple(text[-length:]): float(chance) for text, chance in zip(texts.tolist(), chances, strict=True)
            }
        best = sorted(probabilities.values(), reverse=True)[:19]
        paths = [tuple(step.tokens[node] for node in step.tree.path_to(leaf)[1:]) for leaf in range(1, 20)]
        np.testing.assert_allclose(sorted((probabilities[path] for path in paths), reverse=True), best, rtol=1e-5)
        sequence += step.new_tokens


def test_drafting_respects_the_beam_and_stops_early(tiny_target):
    sharp = tiny_llama(2, layers=1, scale=30.0)
    flat = tiny_llama(2, layers=1, scale=0.05)
    for draft, policy in (
        (sharp, SpecExecTree(max_size=30, max_depth=6, beam=3)),
        (flat, SpecExecTree(max_size=4, max_depth=6)),
    ):
        steps = list(decode(PROMPT, pair_of(tiny_target, draft), tree=policy, max_new_tokens=20))
        assert all(max(step.draft_widths) <= policy.beam and len(step.draft_widths) <= 6 for step in steps)
        if draft is flat:  # the root's three best children fill the tree, and no grandchild is better
            assert all(step.tree.depth == 1 and len(step.draft_widths) <= 2 for step in steps)
