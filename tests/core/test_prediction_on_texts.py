"""Predictions on recorded answers: what decoding then does, exactly where trees are fixed before the target draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.prediction_on_texts import predict_on_texts
from sequoia_core import HybridTree, LookupTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.studies.lookup_replay import Request
from tests.conftest import calibration_of, linear_profile, pair_of, tiny_llama, tokens_of
from tests.core.decoding.growing.test_lookup_tree import PROMPT

COSTS = linear_profile(0.02)
PROMPTS = (PROMPT, PROMPT[::-1], PROMPT * 2)


def answers(target, sampling, length=48):
    made = [
        autoregressive(
            prompt, pair_of(target), sampling=sampling, max_new_tokens=length,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed, prompt in enumerate(PROMPTS)
    ]  # fmt: skip
    return [Request(prompt, tokens_of(steps)) for prompt, steps in zip(PROMPTS, made, strict=True)]


def hybrid(recipe, temperature):
    calibration = calibration_of(0.6, temperature=temperature)
    return HybridTree(index=TextIndex(), profile=COSTS, calibration=calibration, max_size=16, recipe=recipe)


def decoded(policy, target, draft, sampling):
    steps = tokens = 0
    for seed, prompt in enumerate(PROMPTS):
        found = list(
            decode(
                prompt, pair_of(target, draft), tree=policy, sampling=sampling, max_new_tokens=48,
                generator=torch.Generator().manual_seed(seed),
            )
        )  # fmt: skip
        tokens, steps = tokens + len(tokens_of(found)), steps + len(found)
    return tokens / steps


@pytest.mark.parametrize("kind", ["lookup", "hybrid"])
def test_greedy_predictions_are_what_decoding_does(kind, tiny_target):
    draft = tiny_llama(1)
    policy = hybrid("topk", 0.0) if kind == "hybrid" else LookupTree(TextIndex(), profile=COSTS)
    greedy = SamplingConfig()
    found = predict_on_texts(policy, answers(tiny_target, greedy), COSTS, draft=draft)
    measured = decoded(policy, tiny_target, draft if kind == "hybrid" else None, greedy)
    assert found.tokens_per_step.value == pytest.approx(measured) and measured > 1.0
    assert found.replayed and found.tokens_per_step.low <= measured <= found.tokens_per_step.high
    per_step, step = found.tokens_per_step.value, found.step.total_sec
    assert found.speedup.value == pytest.approx(per_step * found.autoregressive_sec / step)
    assert (found.step.draft_sec > 0.0) == (kind == "hybrid")
    timed = replace(COSTS, verify_samples=tuple((t, 1.1 * t) for t in COSTS.verify_sec))
    one = predict_on_texts(policy, answers(tiny_target, greedy)[:1], timed, draft=draft)
    assert one.speedup.low is None  # how times vary says nothing about how texts do


def test_drawn_trees_are_predicted_by_what_their_nodes_promise(tiny_target):
    """The draft is the target, so every draw is accepted, but seldom the token that a record has."""
    sampling, policy = SamplingConfig(1.0), hybrid("in_turn", 1.0)
    found = predict_on_texts(policy, answers(tiny_target, sampling), COSTS, draft=tiny_llama(1), temperature=1.0)
    assert not found.replayed
    promised = 1.0 + np.cumprod(np.full(12, 0.6)).sum()  # a calibration that says 0.6 of the first draw
    assert 1.3 < found.tokens_per_step.value < promised + 0.5


def test_bad_input(tiny_target):
    with pytest.raises(ValueError, match="draft: found none for hybrid trees"):
        predict_on_texts(hybrid("topk", 0.0), [Request(PROMPT, PROMPT)], COSTS)
    with pytest.raises(ValueError, match="policy: found a static tree"):
        predict_on_texts(hybrid("static", 1.0), [Request(PROMPT, PROMPT)], COSTS, draft=tiny_target)
    with pytest.raises(ValueError, match="found no answers to prompts"):
        predict_on_texts(LookupTree(TextIndex(), profile=COSTS), [Request([], PROMPT)], COSTS)
