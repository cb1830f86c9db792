"""Predictions on recorded answers: what decoding then does."""

from dataclasses import replace

import pytest

from benchmarks.prediction_on_texts import predict_on_texts
from sequoia_core import HybridTree, LookupTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.studies.lookup_replay import Request
from tests.conftest import calibration_of, linear_profile, pair_of, tiny_llama, tokens_of
from tests.core.decoding.growing.test_lookup_tree import PROMPT

COSTS = linear_profile(0.02)
PROMPTS = (PROMPT, PROMPT[::-1], PROMPT * 2)


def answers(target, length=48):
    made = [autoregressive(prompt, pair_of(target), max_new_tokens=length) for prompt in PROMPTS]
    return [Request(prompt, tokens_of(steps)) for prompt, steps in zip(PROMPTS, made, strict=True)]


def decoded(policy, target, draft):
    steps = tokens = 0
    for prompt in PROMPTS:
        found = list(decode(prompt, pair_of(target, draft), tree=policy, max_new_tokens=48))
        tokens, steps = tokens + len(tokens_of(found)), steps + len(found)
    return tokens / steps


@pytest.mark.parametrize("kind", ["lookup", "hybrid"])
def test_greedy_predictions_are_what_decoding_does(kind, tiny_target):
    draft, policy = tiny_llama(1), LookupTree(TextIndex(), profile=COSTS)
    if kind == "hybrid":
        calibration = calibration_of(0.6)
        policy = HybridTree(index=TextIndex(), profile=COSTS, calibration=calibration, max_size=16, recipe="topk")
    found = predict_on_texts(policy, answers(tiny_target), COSTS, draft=draft)
    measured = decoded(policy, tiny_target, draft if kind == "hybrid" else None)
    assert found.tokens_per_step.value == pytest.approx(measured) and measured > 1.0
    assert found.replayed and found.tokens_per_step.low <= measured <= found.tokens_per_step.high
    per_step, step = found.tokens_per_step.value, found.step.total_sec
    assert found.speedup.value == pytest.approx(per_step * found.autoregressive_sec / step)
    assert (found.step.draft_sec > 0.0) == (kind == "hybrid")
    timed = replace(COSTS, verify_samples=tuple((t, 1.1 * t) for t in COSTS.verify_sec))
    one = predict_on_texts(policy, answers(tiny_target)[:1], timed, draft=draft)
    assert one.speedup.low is None  # how times vary says nothing about how texts do
