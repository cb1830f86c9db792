"""The settings of servers: every part parses as the server would take it, by batch size too."""

import json
import shlex

import pytest

from sequoia_extras.servers.flags import METHODS, flags_by_batch, method_from_name, server_flags


def vllm_config(text: str) -> dict:
    option, value = shlex.split(text)
    assert option == "--speculative-config"
    return json.loads(value)


@pytest.mark.sample(len(METHODS))
@pytest.mark.parametrize("method", METHODS)
def test_vllm_settings_are_one_json_object(method):
    config = vllm_config(server_flags("vllm", 3, method=method))
    assert config["num_speculative_tokens"] == 3
    assert config["method"] == {"draft": "draft_model"}.get(method, method)
    assert ("model" in config) is (method not in ("mtp", "ngram"))  # which are in the target, or need none


NAMES = [  # as a server's log, a head or its file names what drafts -> the method
    ("draft-mtp", "mtp"), ("draft-eagle3", "eagle3"), ("draft-dflash", "dflash"), ("draft-simple", "draft"),
    ("draft-dspark", "dspark"), ("ngram-mod", "ngram"), ("ngram_map_k4v", "ngram"), ("", None),
    ("Gemma-4-12B with an EAGLE-3 head", "eagle3"), ("Qwen3-8B-speculator.peagle", "eagle3"), ("suffix", None),
]  # fmt: skip


@pytest.mark.sample(len(NAMES))
@pytest.mark.parametrize(("name", "method"), NAMES)
def test_the_method_is_recognised_by_the_drafter_name(name, method):
    assert method_from_name(name) == method


def test_settings_use_the_drafter_that_ran():
    assert server_flags("llama.cpp", 5, method="ngram", drafter="ngram_simple") == (
        "--spec-type ngram-simple --spec-ngram-simple-size-m 5"
    )
    assert "--model-draft" not in server_flags("llama.cpp", 2, method="mtp", drafter="draft-mtp")
    for engine in ("llama.cpp", "vllm", "sglang"):  # a name that a log or a file gives is never copied as it is
        assert server_flags(engine, 2, drafter="draft-x; rm\n'\x1b") == server_flags(engine, 2)
    assert vllm_config(server_flags("vllm", 4, method="eagle3", drafter="P-EAGLE"))["parallel_drafting"] is True


def test_sglang_counts_the_bonus_token():
    words = shlex.split(server_flags("sglang", 3))
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--speculative-num-steps"] == "3" and options["--speculative-num-draft-tokens"] == "4"
    assert options["--speculative-eagle-topk"] == "1"
    assert server_flags("sglang", 7, method="mtp").startswith("--speculative-algorithm EAGLE --speculative-num-steps 7")
    assert server_flags("sglang", 7, method="dflash") == (
        "--speculative-algorithm DFLASH --speculative-draft-model-path <draft> --speculative-num-draft-tokens 8"
    )
    assert server_flags("sglang", 7, method="dspark").endswith(  # SGLang requires one more than the block
        "--speculative-dspark-block-size 7 --speculative-num-draft-tokens 8"
    )


def test_settings_by_batch_size_list_every_k():
    flags = flags_by_batch("vllm", {1: 4, 4: 4, 8: 2, 32: 0})
    config = vllm_config(flags["vLLM 0.32, by batch size"])
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 8, 2], [9, 32, 0]]
    assert "draft_len_schedule: {1: 4, 4: 4, 8: 2}" in flags["TensorRT-LLM 1.3, by batch size"]
    slots = next(
        text for name, text in flags_by_batch("sglang", {1: 4, 8: 0}, method="eagle3").items() if "EAGLE" in name
    )
    assert json.loads(slots) == {"1": {"candidate_steps": [4]}, "8": {"candidate_steps": [0]}}
    assert not any("adaptive" in name for name in flags_by_batch("sglang", {1: 4, 8: 0}, method="ngram"))
