"""Readings of servers by name."""

import pytest

from tests.extras.servers.samples import AFTER, BEFORE, LLAMA_PMIN, NGRAM, WIRED, llama_text, vllm_text


@pytest.fixture
def files(tmp_path):
    """Readings of servers by name."""
    for name, text in (
        ("after", vllm_text(*AFTER)), ("before", vllm_text(*BEFORE)), ("ngram", vllm_text(*NGRAM)),
        ("wired", vllm_text(*WIRED)), ("pmin", llama_text(*LLAMA_PMIN)),
        ("empty", "# HELP vllm:x y\nvllm:x 1\n"),
        ("log", '{"prompt": "a", "response": "b"}'),
        ("off", "# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total 900\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return lambda name: str(tmp_path / name)
