"""Acceptance of a draft head by depth: measurement along text, comparison with decoding, and planning."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig, draft_probabilities, probabilities
from sequoia_core.decoding.verifiers import GREEDY_VERIFIER
from sequoia_core.measuring import ranks_along_text
from sequoia_core.measuring.measure_acceptance import HEAD_DEPTHS, Checkpoints, measure_acceptance
from sequoia_core.planning.plan import speedup_surface
from sequoia_core.planning.prediction import predict, without_depth
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_core.trees.plain import chain_tree, k_ary_tree, tree_limit
from sequoia_core.trees.replay import replay
from tests.conftest import linear_profile, pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_loop import PROMPT, TREES, greedy_reference, run
from tests.head_folders import plain_row, random_head

PROMPTS = [PROMPT, [7, 8], [9, 2, 6, 1]]


@pytest.fixture(scope="module")
def measured(tiny_target, tiny_head):
    return measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_head), width=8, max_new_tokens=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tree", [chain_tree(HEAD_DEPTHS), k_ary_tree(2, 3), k_ary_tree(3, 4)], ids=lambda tree: tree.size
)
def test_replayed_trees_match_decoding(tree, measured, tiny_target, tiny_head):
    """Each node on the accepted path sees the same tokens as a chain along the text."""
    texts = replay(tree, measured)
    pair = pair_of(tiny_target, tiny_head)
    steps = [list(decode(prompt, pair, tree=tree, max_new_tokens=40)) for prompt in PROMPTS]
    assert texts.steps.tolist() == [len(each) for each in steps] and texts.tokens.tolist() == [40] * 3
    assert texts.steps[0] < 30, "a head of which nothing is accepted proves little"
    shallow = replay(tree, replace(measured, by_depth=None))
    assert shallow.steps.tolist() != texts.steps.tolist()


@pytest.mark.slow
def test_levels_match_chains_without_a_session(measured, tiny_target, tiny_head):
    text = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
    whole = [*PROMPT, *text]
    counted = np.zeros((HEAD_DEPTHS, 8))
    for depth in range(HEAD_DEPTHS):
        for place in range(depth, 40):
            row = plain_row(tiny_head, whole[: len(PROMPT) + place], true=len(PROMPT) + place - depth)
            target = torch.nn.functional.one_hot(torch.tensor([whole[len(PROMPT) + place]]), 64).float()
            draft = draft_probabilities(row[None], SamplingConfig(1.0))[0]
            counted[depth] += GREEDY_VERIFIER.ranks(target, draft, 8, torch.Generator())[0].numpy()
    np.testing.assert_allclose(measured.by_depth.prompt_sums[0], counted, atol=1e-6)
    assert measured.by_depth.trials[:, 0].tolist() == [120 - 3 * depth for depth in range(HEAD_DEPTHS)]
    np.testing.assert_allclose(measured.by_depth.probs[0], measured.probs)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_chunked_and_resumed_measurements_are_equal(temperature, monkeypatch):
    """Chains of a chunk start in the previous one, and resuming gives equal results."""
    target = tiny_llama(5, vocab=16, scale=1.0)
    pair = pair_of(target, random_head(target, scale=3.0, draft_vocab=12))
    options = {"sampling": SamplingConfig(temperature), "width": 4, "max_new_tokens": 30}

    def ranks(vector):
        return [rows.tolist() for rows in vector.by_depth.prompt_ranks]

    saved = []
    texts = [[3], [4, 5]]
    whole = measure_acceptance(texts, pair, **options, checkpoints=Checkpoints(save=saved.append))
    again = AcceptanceVector.loads(saved[0].to_bytes(), "saved.json")
    assert again == saved[0] and again.by_depth is not None
    resumed = measure_acceptance(texts, pair, **options, checkpoints=Checkpoints(resume=again))
    np.testing.assert_allclose(resumed.by_depth.probs, whole.by_depth.probs, atol=1e-12)
    assert ranks(resumed) == ranks(whole)
    bounds = whole.by_depth.interval()
    assert (bounds[0] <= whole.by_depth.probs + 1e-9).all() and (whole.by_depth.probs <= bounds[1] + 1e-9).all()
    if temperature == 0.0:
        monkeypatch.setattr(ranks_along_text, "CHUNK", 7)
        assert ranks(measure_acceptance(texts, pair, **options)) == ranks(whole)


def test_sampled_acceptance_matches_the_rule_by_depth():
    """With all ranks, the sum over ranks is one minus the residual's mass for any draws."""
    target = tiny_llama(6, vocab=8, scale=1.0)
    head = random_head(target, scale=2.0)
    text = [1, 2, 3, 4, 5, 6, 7, 0, 1, 3]
    vector = measure_acceptance(
        [text], pair_of(target, head), sampling=SamplingConfig(1.0), width=1, max_new_tokens=None
    )
    for depth in range(HEAD_DEPTHS):
        wanted = 0.0
        for place in range(1 + depth, len(text)):
            row = probabilities(plain_row(head, text[:place], true=place - depth)[None], SamplingConfig(1.0))[0]
            other = target.plain_logits(torch.tensor(text[:place]))[-1].softmax(-1)
            wanted += float(torch.minimum(row, other).sum().detach())  # for one child, averaged over its draws
        found = vector.by_depth.prompt_sums[0, depth, 0]
        assert 0 < found < len(text) and abs(found - wanted) < 3.0
    assert vector.by_depth.prompt_trials[0].tolist() == list(range(9, 9 - HEAD_DEPTHS, -1))


def test_plans_use_acceptance_by_depth():
    levels = np.array([[0.8, 0.1, 0.05], [0.5, 0.2, 0.1], [0.2, 0.2, 0.1]])
    vector = AcceptanceVector.from_levels(levels)
    profile = linear_profile(0.05, 0.05)
    flat = replace(vector, by_depth=None)
    assert expected_tokens(chain_tree(3), vector) == pytest.approx(1 + 0.8 + 0.4 + 0.08)
    assert expected_tokens(chain_tree(4), vector) == pytest.approx(1 + 0.8 + 0.4 + 0.08 + 0.016)
    mine = optimal_tree(vector, size=12)
    other = optimal_tree(flat, size=12)
    assert expected_tokens(mine, vector) > expected_tokens(other, vector) and mine.depth < other.depth
    assert expected_tokens(optimal_tree(vector, size=2000), vector) < tree_limit(vector) < tree_limit(flat)
    compared = without_depth(optimal_tree(vector, size=8), vector, profile)
    assert compared.promised > compared.speedup and compared.depth > optimal_tree(vector, size=8).depth
    assert without_depth(mine, flat, profile) is None
    surface = speedup_surface(vector, profile)
    assert np.nanmax(surface.speedup) < np.nanmax(speedup_surface(flat, profile).speedup)
    assert predict(mine, vector, profile).tokens_per_step.value == pytest.approx(expected_tokens(mine, vector))
    ragged = AcceptanceVector.from_levels(np.array([[0.3, 0.4], [0.2, 0.3]]))  # rising ranks need the dynamic program
    assert np.nanmax(speedup_surface(ragged, profile).speedup) > 1


def test_inconsistent_levels_are_rejected():
    vector = AcceptanceVector.from_levels(np.array([[0.5, 0.2], [0.4, 0.1]]))
    content = vector.to_bytes().decode()
    assert "[0.5, 0.2], [" in content
    with pytest.raises(ValueError, match="by_depth"):
        AcceptanceVector.loads(content.replace("[0.5, 0.2], [", "[0.6, 0.2], [").encode(), "vector.json")


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_greedy_output_is_identical_to_generate(tree, tiny_target, tiny_head):
    for prompt in ([7], PROMPT):
        steps = run(tiny_target, tiny_head, tree, prompt=prompt)
        assert tokens_of(steps) == greedy_reference(tiny_target, prompt, 40)
    assert tree.depth < 2 or max(len(step.new_tokens) for step in steps) > 2
