"""Replaying recorded answers: step by step what decoding does, at any temperature; sizes, bounds, bad input."""

from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from sequoia_core import HardwareProfile, LookupTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.step_time import autoregressive_sec
from sequoia_core.files.response_logs import Recorded
from sequoia_core.studies import lookup_replay
from sequoia_core.studies.lookup_replay import (
    DEPTH,
    SIZES,
    Replay,
    Request,
    encode_requests,
    replay,
    replay_log,
    text_encoder,
)
from tests.conftest import linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.gguf_files import need_llama_cpp, write_vocabulary

PROMPTS = [[3, 14, 15, 9, 2, 6, 3, 14, 15], [9, 2, 6, 3], [3, 14, 15, 9, 2], [5]]


@pytest.fixture(scope="module")
def target():
    return recalled(tiny_llama(1, vocab=24, layers=1, scale=1.5))


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("shared", [False, True], ids=["own text", "earlier answers too"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_replay_takes_the_steps_that_decoding_took(temperature, shared, target):
    sampling = SamplingConfig(temperature)
    for size in (2, 8, 64):
        index, requests, taken, nodes = TextIndex(), [], [], Counter()
        for number, prompt in enumerate(PROMPTS):
            policy = LookupTree(index if shared else TextIndex(), max_size=size, max_depth=DEPTH)
            generator = torch.Generator().manual_seed(number)
            options = {"sampling": sampling, "max_new_tokens": 40, "generator": generator}
            steps = list(decode(prompt, pair_of(target), tree=policy, **options))
            requests.append(Request(prompt, tokens_of(steps)))
            taken.append(len(steps))
            nodes.update(step.tree.size for step in steps)
            if shared:
                index.add([*prompt, *requests[-1].token_ids])
        found = replay(requests, shared=shared)
        assert found.steps[SIZES.index(size)].tolist() == taken
        assert found.nodes[SIZES.index(size)] == nodes
        assert found.tokens.tolist() == [40] * 4
    assert sum(taken) < 150, "something was accepted"


def test_sizes_and_speedups_by_counting_again(target):
    answers = [tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=60)) for prompt in PROMPTS]
    found = replay([Request(*pair) for pair in zip(PROMPTS, answers, strict=True)], shared=True)
    rates = [found.tokens_per_step(size) for size in found.sizes]
    assert [rate.value for rate in rates] == [240 / steps for steps in found.steps.sum(axis=1)]
    assert all(low <= value <= high for value, low, high in rates)
    assert rates[0].value < rates[-1].value
    profile = linear_profile(0.05)
    for size, counts in zip(found.sizes, found.nodes, strict=True):
        seconds = sum(steps * profile.verify_at(np.array(nodes)) for nodes, steps in counts.items())
        assert found.predicted_speedup(size, profile) == pytest.approx(240 * autoregressive_sec(profile) / seconds)
    best = found.best_size(profile)
    assert found.predicted_speedup(best, profile) == max(found.predicted_speedup(s, profile) for s in found.sizes)
    assert found.best_size(HardwareProfile([1, 2, 4], [0.01] * 3, 0.001)) <= 4  # larger ones were not timed
    gains = {size: found.tokens_per_step(size).value - 1 for size in found.sizes}
    enough = found.best_size(None)
    assert gains[enough] >= 0.95 * gains[64]
    assert all(gains[size] < 0.95 * gains[64] for size in found.sizes if size < enough)
    barely = Replay((2, 4), np.array([105]), np.array([[100], [99]]), ({}, {}))  # 5 and 6 tokens beyond one a step
    assert barely.best_size(None) == 4


def test_an_answer_without_a_prompt_begins_with_a_step_of_its_own():
    found = replay([Request([], [1, 2, 3, 1, 2, 3, 1, 2, 3])], shared=False)
    assert 4 <= found.steps[-1][0] < 9 and all(counts[1] >= 1 for counts in found.nodes)


def test_a_log_is_replayed_four_ways(target):
    answers = [tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=30)) for prompt in PROMPTS]
    requests = [Request(*pair) for pair in zip(PROMPTS, answers, strict=True)]
    shown = []
    found = replay_log(requests, progress=lambda fraction, words: shown.append(fraction))
    assert shown == sorted(shown) and shown[-1] == 1.0 and len(shown) == 16
    for part, shared, children in (
        (found.own, False, 24), (found.shared, True, 24), (found.own_chain, False, 1), (found.shared_chain, True, 1)
    ):  # fmt: skip
        assert part.steps.tolist() == replay(requests, shared=shared, max_children=children).steps.tolist()
    words = found.server_settings()
    assert f'"num_speculative_tokens": {found.own_chain.best_size(None) - 1},' in words["vLLM, this text"]
    assert words["llama.cpp, this text"].endswith(f"size-m {found.own_chain.best_size(None) - 1}")
    assert words["llama.cpp, earlier answers"].endswith(f"n-max {found.shared_chain.best_size(None) - 1}")
    assert f"--speculative-num-draft-tokens {found.shared.best_size(None)} " in words["SGLang, earlier answers"]


def test_text_is_encoded_and_says_so(monkeypatch):
    def encode(text):
        return [ord(letter) for letter in text]

    texts = encode_requests([Recorded("ab", "cd"), Recorded("e", "f")], encode)
    assert texts == ([Request([97, 98], [99, 100]), Request([101], [102])], False, 0)
    ids = encode_requests([Recorded([1], [2, 3])], encode)
    assert ids == ([Request([1], [2, 3])], True, 0)
    monkeypatch.setattr(lookup_replay, "MAX_TOKENS", 5)
    cut = encode_requests([Recorded("ab", "cd"), Recorded("e", "f"), Recorded("g", "h")], encode)
    assert len(cut.requests) == 1 and cut.left_out == 2


def test_text_can_be_encoded_by_the_tokenizer_of_a_gguf_file(tmp_path):
    need_llama_cpp()
    tokens = [*sorted(ByteLevel.alphabet()), "ab"]
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", tokens, pre="gpt-2", merges=["a b"])
    assert text_encoder(path)("aba") == [tokens.index("ab"), tokens.index("a")]


@pytest.mark.parametrize(("answer", "message"), [([-2], "token ids: found"), ([], "found no answers")])
def test_what_cannot_be_replayed_is_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        replay([Request([1], answer)], shared=False)
