"""The settings of servers: every part parses as the server would take it, by batch size too."""

import json
import shlex

import pytest

from sequoia_core.servers.flags import METHODS, flags_by_batch, server_flags


def vllm_config(text: str) -> dict:
    option, value = shlex.split(text)
    assert option == "--speculative-config"
    return json.loads(value)


@pytest.mark.parametrize("method", METHODS)
def test_vllm_takes_one_json(method):
    config = vllm_config(server_flags("vllm", 3, method=method))
    assert config["num_speculative_tokens"] == 3
    assert config["method"] == {"draft": "draft_model"}.get(method, method)


def test_sglang_counts_the_bonus_token_too():
    words = shlex.split(server_flags("sglang", 3))
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--speculative-num-steps"] == "3" and options["--speculative-num-draft-tokens"] == "4"
    assert options["--speculative-eagle-topk"] == "1"


def test_by_batch_size_every_size_has_its_k():
    flags = flags_by_batch("vllm", {1: 4, 4: 4, 8: 2, 32: 0})
    config = vllm_config(flags["vLLM 0.32, by batch size"])
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 8, 2], [9, 32, 0]]
    assert "draft_len_schedule: {1: 4, 4: 4, 8: 2}" in flags["TensorRT-LLM 1.3, by batch size"]
    slots = next(text for name, text in flags_by_batch("sglang", {1: 4, 8: 0}).items() if "EAGLE" in name)
    assert json.loads(slots) == {"1": {"candidate_steps": [4]}, "8": {"candidate_steps": [0]}}
