"""Commands that run in this process, and the files that they are given."""

import json

import pytest

from sequoia_core.command_line.main import main
from tests.core.design.test_bench_profile import ROWS
from tests.core.servers.samples import AFTER, BEFORE, LLAMA_PMIN, NGRAM, WIRED, llama_text, vllm_text


@pytest.fixture
def call(capsys):
    """Run a command; return its one JSON object."""

    def run(*arguments: str) -> dict:
        code = main([*arguments, "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        assert output.out.count("\n") == 1
        return json.loads(output.out)

    return run


@pytest.fixture
def refusal(capsys):
    """Run a command that is refused; return the one line that it says."""

    def run(*arguments: str) -> str:
        code, output = main([*arguments]), capsys.readouterr()
        assert (code, output.out, output.err.count("\n")) == (2, "", 1), output.err
        return output.err

    return run


@pytest.fixture
def files(tmp_path):
    """Readings of servers by name."""
    for name, text in (
        ("after", vllm_text(*AFTER)), ("before", vllm_text(*BEFORE)), ("ngram", vllm_text(*NGRAM)),
        ("wired", vllm_text(*WIRED)), ("pmin", llama_text(*LLAMA_PMIN)),
        ("bench", json.dumps(ROWS)), ("empty", "# HELP vllm:x y\nvllm:x 1\n"),
        ("log", '{"prompt": "a", "response": "b"}'),
        ("off", "# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total 900\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return lambda name: str(tmp_path / name)
