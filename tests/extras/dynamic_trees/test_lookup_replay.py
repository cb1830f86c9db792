"""Replays of recorded answers take the steps of decoding, at any temperature."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from sequoia_core import HardwareProfile
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.response_logs import RecordedRequest
from sequoia_core.planning.step_time import autoregressive_sec
from sequoia_extras.dynamic_trees import LookupTree, lookup_replay
from sequoia_extras.dynamic_trees.lookup_replay import (
    TREE_DEPTH,
    TREE_SIZES,
    EncodedRequest,
    LookupReplay,
    encode_requests,
    replay,
    replay_log,
    text_encoder,
)
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.gguf_files import need_llama_cpp, write_vocabulary

PROMPTS = [[3, 14, 15, 9, 2, 6, 3, 14, 15], [9, 2, 6, 3], [3, 14, 15, 9, 2], [5]]


@pytest.fixture(scope="module")
def target():
    return recalled(tiny_llama(1, vocab=24, layers=1, scale=1.5))


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("shared", [False, True], ids=["own text", "earlier answers too"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replay_takes_the_same_steps_as_decoding(temperature, shared, target):
    sampling = SamplingConfig(temperature)
    for size in (2, 8, 64):
        index = TextIndex()
        requests = []
        taken = []
        nodes = Counter()
        for number, prompt in enumerate(PROMPTS):
            policy = LookupTree(index if shared else TextIndex(), max_size=size, max_depth=TREE_DEPTH)
            generator = torch.Generator().manual_seed(number)
            options = {"sampling": sampling, "max_new_tokens": 40, "generator": generator}
            steps = list(decode(prompt, pair_of(target), tree=policy, **options))
            requests.append(EncodedRequest(prompt, tokens_of(steps)))
            taken.append(len(steps))
            nodes.update(step.tree.size for step in steps)
            if shared:
                index.add([*prompt, *requests[-1].token_ids])
        found = replay(requests, shared=shared)
        assert found.steps[TREE_SIZES.index(size)].tolist() == taken
        assert found.nodes[TREE_SIZES.index(size)] == nodes
        assert found.tokens.tolist() == [40] * 4
    assert sum(taken) < 150


def test_best_sizes_and_speedups(target):
    answers = [tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=60)) for prompt in PROMPTS]
    found = replay([EncodedRequest(*pair) for pair in zip(PROMPTS, answers, strict=True)], shared=True)
    rates = [found.tokens_per_step(size) for size in found.sizes]
    assert [rate.value for rate in rates] == [240 / steps for steps in found.steps.sum(axis=1)]
    assert all(low <= value <= high for value, low, high in rates)
    profile = linear_profile(0.05)
    for size, counts in zip(found.sizes, found.nodes, strict=True):
        seconds = sum(steps * profile.verify_at(np.array(nodes)) for nodes, steps in counts.items())
        assert found.predicted_speedup(size, profile) == pytest.approx(240 * autoregressive_sec(profile) / seconds)
    best = found.best_size(profile)
    assert found.predicted_speedup(best, profile) == max(found.predicted_speedup(s, profile) for s in found.sizes)
    assert found.best_size(HardwareProfile([1, 2, 4], [0.01] * 3, 0.001)) <= 4, "larger sizes were not profiled"
    gains = [rate.value - 1 for rate in rates]
    assert found.best_size(None) == next(s for s, g in zip(found.sizes, gains, strict=True) if g >= 0.95 * gains[-1])
    close = LookupReplay((2, 4), np.array([105]), np.array([[100], [99]]), ({}, {}))
    assert close.best_size(None) == 4, "gains are those over one token per step"


def test_replay_of_an_answer_without_a_prompt():
    found = replay([EncodedRequest([], [1, 2, 3, 1, 2, 3, 1, 2, 3])], shared=False)
    assert 4 <= found.steps[-1][0] < 9 and all(counts[1] >= 1 for counts in found.nodes)


def test_replay_log_combines_four_replays(target):
    answers = [tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=30)) for prompt in PROMPTS]
    requests = [EncodedRequest(*pair) for pair in zip(PROMPTS, answers, strict=True)]
    shown = []
    found = replay_log(requests, progress=lambda fraction, words: shown.append(fraction))
    assert shown == sorted(shown) and shown[-1] == 1.0 and len(shown) == 16
    parts = found.isolated, found.shared, found.isolated_chain, found.shared_chain
    for part, (children, shared) in zip(parts, itertools.product((24, 1), (False, True)), strict=True):
        assert part.steps.tolist() == replay(requests, shared=shared, max_children=children).steps.tolist()
    settings = found.server_settings()
    chain, earlier = (part.best_size(None) - 1 for part in parts[2:])
    assert f'"num_speculative_tokens": {chain},' in settings["vLLM, this text"]
    assert settings["llama.cpp, this text"].endswith(f"size-m {chain}")
    assert settings["llama.cpp, earlier answers"].endswith(f"n-max {earlier}")
    assert f"--speculative-num-draft-tokens {found.shared.best_size(None)} " in settings["SGLang, earlier answers"]


def test_encoded_text_is_marked_as_inexact(monkeypatch):
    def encode(text):
        return [ord(letter) for letter in text]

    log = [RecordedRequest("ab", "cd"), RecordedRequest("e", "f"), RecordedRequest("g", "h")]
    assert encode_requests(log[:1], encode) == ([EncodedRequest([97, 98], [99, 100])], False, 0)
    assert encode_requests([RecordedRequest([1], [2, 3])], encode) == ([EncodedRequest([1], [2, 3])], True, 0)
    monkeypatch.setattr(lookup_replay, "MAX_REPLAYED_TOKENS", 5)
    cut = encode_requests(log, encode)
    assert len(cut.requests) == 1 and cut.left_out == 2


def test_text_encoder_reads_the_tokenizer_of_a_gguf_file(tmp_path):
    need_llama_cpp()
    tokens = [*sorted(ByteLevel.alphabet()), "ab"]
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", tokens, pre="gpt-2", merges=["a b"])
    assert text_encoder(path)("aba") == [tokens.index("ab"), tokens.index("a")]


@pytest.mark.parametrize(("answer", "message"), [([-2], "token ids: found"), ([], "found no answers")])
def test_replay_refuses_invalid_answers(answer, message):
    with pytest.raises(ValueError, match=message):
        replay([EncodedRequest([1], answer)], shared=False)
