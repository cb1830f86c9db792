"""The command `lookup`, and `generate` with a target alone."""

from pathlib import Path

import pytest

from tests.commands import PROFILE, check_no_torch


@pytest.mark.slow
def test_generate_without_a_draft_writes_the_same_text(call):
    options = ["generate", "--prompt", "def read_lines(path):\n", "--max-new-tokens", "48", "--dtype", "float32"]
    alone = call(*options, "--draft", "none", "--profile", str(PROFILE))
    assert alone["tokens"] == call(*options)["tokens"] and alone["steps"] < len(alone["tokens"])
    assert "text already seen" in alone["tree"]["source"] and alone["tree"]["size"] <= 64


def test_lookup_replays_a_log_without_a_model(call, tmp_path):
    """Replays of token ids are exact, those of text are estimates."""
    ids = tmp_path / "ids.jsonl"
    text = tmp_path / "chat.jsonl"
    ids.write_text('{"prompt_ids": [1, 2, 3, 4, 9], "token_ids": [1, 2, 3, 4, 9, 1, 2, 3, 4, 9, 1, 2, 3, 4, 9]}\n' * 2)
    found = call("lookup", "--responses", str(ids))
    assert found["requests"] == 2 and found["tokens"] == 30 and found["exact"]
    own = found["tokens_per_step"]["own"]
    shared = found["tokens_per_step"]["shared"]
    assert 1.0 < own["2"] < own["16"] <= shared["16"]
    assert all(low <= own[n] <= high for n, (low, high) in found["interval"]["own"].items())
    text.write_text('{"prompt": "def f(a): return a", "response": "def f(a): return a"}')
    again = call("lookup", "--responses", str(text), "--profile", str(PROFILE))
    assert not again["exact"] and "estimate" in again["warnings"][0] and again["predicted_speedup"] > 1.0


def test_lookup_does_not_import_torch(said, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt_ids": [1, 2, 3, 9], "token_ids": [1, 2, 3, 9, 1, 2, 3, 9]}\n' * 2)
    assert said("lookup", "--responses", str(log)).startswith("2 requests, 16 tokens.")
    check_no_torch((0, ["lookup", "--responses", str(log), "--json"]))


def test_an_invalid_tokenizer_is_refused(refusal, tmp_path):
    log = str(tmp_path / "log.jsonl")
    prompts = str(PROFILE.parents[1] / "prompts" / "prompts.jsonl")
    Path(log).write_text('{"prompt": "a", "response": "b"}')
    assert "expected a tokenizer.json" in refusal("lookup", "--responses", log, "--tokenizer", prompts)
