"""SpecExec's trees: those of largest cumulative draft probability, lossless, and the target's own text at T = 0.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

import itertools

import numpy as np
import pytest
import torch

from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from tests.conftest import around_passes, pair_of, tiny_llama, tokens_of

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without
PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.mark.parametrize(
    "policy",
    [
        SpecExecTree(max_size=12, max_depth=4, beam=3, branch=5),
        SpecExecTree(max_size=40, max_depth=7, beam=2, branch=3),
        SpecExecTree(max_size=3, max_depth=9, beam=8, branch=8),
        SpecExecTree(max_size=1, max_depth=1),
    ],
)
def test_greedy_text_is_the_targets_own(policy, tiny_target, tiny_draft):
    for draft in (tiny_draft, tiny_llama(1)):  # one that is often wrong, one that never is
        steps = list(decode(PROMPT, pair_of(tiny_target, draft), tree=policy, max_new_tokens=40))
        assert tokens_of(steps) == tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
        assert all(step.tree.size <= policy.max_size and step.tree.depth <= policy.max_depth for step in steps)
    assert len({step.tree for step in steps}) > 1 or policy.max_size == 1
    assert policy.max_size == 1 or len(steps) < 40 / min(policy.max_size, policy.max_depth) * 1.5  # the draft is right


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_tree_holds_the_most_probable_continuations(temperature):
    """Against a search over every continuation, with a beam and a branch that leave nothing out."""
    target, draft = (tiny_llama(seed, vocab=6, layers=1, scale=0.6) for seed in (1, 2))
    policy = SpecExecTree(max_size=20, max_depth=3, beam=36, branch=6)
    sequence = [3, 1]
    for step in decode(
        sequence, pair_of(target, draft), tree=policy, sampling=SamplingConfig(temperature), max_new_tokens=12,
        generator=torch.Generator().manual_seed(5),
    ):  # fmt: skip
        sure = {}
        for length in (1, 2, 3):
            texts = torch.tensor([[*sequence, *text] for text in itertools.product(range(6), repeat=length)])
            with torch.inference_mode():
                rows = (draft.model(texts[:, :-1]).logits[:, -length:] / (temperature or 1.0)).softmax(-1)
            chances = rows.gather(2, texts[:, -length:, None])[:, :, 0].prod(1)
            sure |= {tuple(text[-length:]): float(chance) for text, chance in zip(texts.tolist(), chances, strict=True)}
        best = sorted(sure.values(), reverse=True)[:19]
        paths = [tuple(step.tokens[node] for node in step.tree.path_to(place)[1:]) for place in range(1, 20)]
        np.testing.assert_allclose(sorted((sure[path] for path in paths), reverse=True), best, rtol=1e-5)
        sequence += step.new_tokens


def test_a_beam_reads_only_so_many_nodes_and_stops_when_nothing_better_can_come(tiny_target):
    widths = []

    def counted(append, session, ids, positions, tree_mask, keep):
        widths.append(len(ids))
        return append(ids, positions, tree_mask, keep=keep)

    sharp, flat = tiny_llama(2, layers=1, scale=30.0), tiny_llama(2, layers=1, scale=0.05)
    for draft, policy in (
        (sharp, SpecExecTree(max_size=30, max_depth=6, beam=3)),
        (flat, SpecExecTree(max_size=4, max_depth=6)),
    ):
        widths.clear()
        steps = list(
            decode(PROMPT, pair_of(tiny_target, around_passes(draft, counted)), tree=policy, max_new_tokens=20)
        )
        later = widths[1:]  # after the prompt
        assert max(later) <= max(policy.beam, policy.max_depth + 1)
        if draft is flat:  # the root's 3 best children fill the tree, and no grandchild is better: two passes, not six
            assert {step.tree.depth for step in steps} == {1}
            assert len(later) <= 2 * len(steps)


def test_what_cannot_be_is_refused(tiny_target, tiny_draft):
    policy = SpecExecTree(max_size=8, max_depth=2)
    models = {"pair": pair_of(tiny_target, tiny_draft)}
    with pytest.raises(ValueError, match="verifier: found 'sequoia', expected topk"):
        decode(PROMPT, **models, tree=policy, sampling=SamplingConfig(1.0), verifier="sequoia")
    for name in ("max_size", "max_depth", "beam", "branch"):
        with pytest.raises(ValueError, match=f"{name}: found 0, expected a whole number"):
            SpecExecTree(**{"max_size": 4, "max_depth": 2} | {name: 0})
    with pytest.raises(ValueError, match="tree: found 65 children"):
        decode(PROMPT, **models, tree=SpecExecTree(max_size=80, max_depth=2, branch=65))
