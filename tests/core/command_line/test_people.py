"""What commands say to people: sentences and tables that 60 columns hold, whole, with the next command."""

from pathlib import Path

import numpy as np
import pytest

from sequoia_core.command_line import figures
from sequoia_core.command_line.decode_commands import CUT_CHARACTER
from sequoia_core.command_line.main import main
from sequoia_core.command_line.measured_words import (
    bench_parts,
    generate_parts,
    measure_parts,
    server_check_parts,
    sweep_parts,
)
from sequoia_core.command_line.output import report
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.bootstrap import Estimate
from sequoia_core.design.conditions import SEQUOIA, Conditions
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from tests.core.servers.samples import WIRED, vllm_text

ASSETS = Path(__file__).parents[3] / "assets"
VECTOR = str(ASSETS / "acceptance" / "demo-t0.json")
PROFILE = str(ASSETS / "profiles" / "cpu-2core-bfloat16.json")
JAPANESE = "推測的デコーディングでは、小さな下書きモデルがトークンの木を提案する。" * 40


COLUMNS = 60


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.fixture
def said(capsys):
    """Run a command for people; return its words, of lines none of which is wider than the terminal."""

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return folded(capsys.readouterr().out)

    return run


@pytest.fixture
def shown(capsys):
    """Report parts to people; return their words likewise."""

    def run(parts) -> str:
        report({}, False, parts)
        return folded(capsys.readouterr().out)

    return run


def folded(text: str) -> str:
    for line in text.splitlines():  # but those to copy
        assert len(line) <= COLUMNS or line.startswith(("Next: ", "Written to ", "--", "  ")), line
    assert "…" not in text and "{'" not in text and "None" not in text and "nan" not in text
    return " ".join(text.split())


def files(tmp_path, probs, verify_sec, *, known: bool) -> list[str]:
    """Write a vector and a profile, with the names of their pair or without, and return the options that name them."""
    vector, profile, names = tmp_path / "vector.json", tmp_path / "profile.json", {"target": "a", "draft": "b"}
    AcceptanceVector(np.array(probs), holds_for=Conditions("a", "b", 0.0, 1.0, SEQUOIA) if known else None).save(vector)
    HardwareProfile([1, 8, 16, 32], verify_sec, 0.001, dtype="float16", meta=names if known else {}).save(profile)
    return ["--acceptance", str(vector), "--profile", str(profile)]


def test_digits_are_as_many_as_the_interval_supports():
    assert figures.sure(2.25651, 2.08285, 2.44513, "×") == "2.26× [2.08, 2.45]"
    assert figures.sure(77.3214, 77.31, 77.33, " %") == "77.321 % [77.310, 77.330]"
    assert figures.sure(1.1, 0.04, 14.2, "×") == "1.1× [0.0, 14.2]"
    assert figures.sure(0.5, None, None) == "0.500" and figures.figure(14.0) == "14.0"
    assert [figures.duration(sec) for sec in (72.31e-6, 0.01446, 2.5)] == ["72.3 µs", "14.5 ms", "2.50 s"]


def test_a_plan_says_the_tree_why_and_what_it_brings(said):
    words = said("plan", "--acceptance", VECTOR, "--profile", PROFILE)
    assert words.startswith("Draft a tree of 13 nodes, 6 deep: 2.54× [2.42, 2.65] the speed without a draft.")
    assert "tokens per step 3.85 [3.68, 4.01]" in words
    assert words.endswith(f" --acceptance {VECTOR} --profile {PROFILE}")


def test_a_plan_says_what_is_missing_where_it_ends_and_that_nothing_pays(said, tmp_path):
    words = said("plan", *files(tmp_path, [0.6, 0.1, 0.05], [0.02, 0.02, 0.02, 0.02], known=False))
    assert words.startswith("Draft a tree of 32 nodes") and "The profile's largest size (32)" in words
    assert "No interval:" in words and "sequoia generate" not in words
    for command in ("measure --target TARGET --draft DRAFT", "profile --target TARGET --draft DRAFT"):
        assert f"sequoia {command} --out" in words
    words = said("plan", *files(tmp_path, [0.1, 0.05], [0.02, 0.04, 0.08, 0.16], known=True))
    assert words.startswith("Do not speculate: a token takes 20.0 ms without a draft and ")
    assert words.endswith("Next: sequoia bench --target a --draft b")


def test_a_plan_goes_on_with_the_pair_and_the_sampling_that_it_was_made_for(said, tmp_path):
    given = files(tmp_path, [0.6, 0.1, 0.05], [0.02, 0.0202, 0.0206, 0.03], known=True)
    names = PairSpec(None, ASSETS / "demo" / "draft-large").names
    held = Conditions(*names, temperature=0.6, top_p=0.9, verifier="specinfer")
    AcceptanceVector(np.array([0.6, 0.1, 0.05]), holds_for=held).save(given[1])
    words = said("plan", *given)
    assert f"--target {DEMO_PAIR}/target --draft {DEMO_PAIR}/draft-large --temperature 0.6 --top-p 0.9" in words
    assert words.endswith(f"--verifier specinfer {' '.join(given)}")


def test_a_character_that_the_last_token_cut_is_left_out():
    cut = [CUT_CHARACTER.sub("", text) for text in ("ab\ufffd", "\ufffd\ufffd", "a\ufffdb", "\ufffd" * 4)]
    assert cut == ["ab", "", "a\ufffdb", "\ufffd" * 4]  # many in a row are what the model wrote


@pytest.mark.parametrize("text", [JAPANESE, "x" * 500, "a\tb  \n    c\r\n"])
def test_generated_text_is_neither_cut_nor_changed(text, capsys):
    tree = {"size": 5, "depth": 4, "source": JAPANESE}  # in a sentence it is folded
    result = {"text": text, "tokens": [1] * 9, "steps": 3, "tokens_per_step": 3.0, "seconds": 2.0, "dtype": "float32"}
    models, tokenizer = ["--draft", "none"], ["--tokenizer", "model.gguf"]
    report({}, False, generate_parts(result | {"tree": tree, "finished": "eos"}, models, tokenizer))
    out = capsys.readouterr().out
    assert out.endswith("lookup --responses answers.jsonl --tokenizer model.gguf\n")
    assert out.startswith(text) and JAPANESE in out.removeprefix(text).replace("\n", "")
    assert "9 tokens in 3 steps, 3.00 per step" in out


def test_ranks_that_were_never_accepted_are_one_row_with_their_bound(shown):
    sums = np.array([[60.0, 4, 0, 0, 0], [50, 14, 0, 0, 0]])
    vector = AcceptanceVector(sums.sum(axis=0) / 128, prompt_sums=sums, prompt_trials=[64, 64])
    result = {"prompts": 2, "source": "its own text", "more_prompts": None, "resumed_prompts": 0}
    words = shown(measure_parts(vector, result, within=0.01, models=[], out=None))
    assert "3 to 5 0 %, at most 2.31 %" in words and " 0.00 %" not in words
    alone = AcceptanceVector([0.5, 0, 0, 0.1, 0], prompt_sums=[[5, 0, 0, 1, 0]], prompt_trials=[10])
    words = shown(measure_parts(alone, result, within=0.01, models=[], out=None))
    assert "2 to 3 0 % 4 █████ 10.0 % 5 0.00 %" in words


def test_a_race_has_a_row_for_each_method_the_fastest_first(shown):
    rates = {"autoregressive": 100.0, "chain": 180.0, "sequoia": 210.0, "hf_generate": 40.0}
    record = {name: {"tokens_per_sec": rate, "tokens_per_step": rate / 80} for name, rate in rates.items()}
    record["sequoia"] |= {"predicted_speedup": 2.2501, "predicted_interval": [1.92, 2.7001]}
    settings = {"prompts": 8, "max_new_tokens": 128, "temperature": 0.6, "dtype": "bfloat16", "device": "a processor"}
    record |= {"settings": settings | {"calibration_prompts": 48}, "tree": {"size": 4, "depth": 3}, "chain_length": 3}
    record |= {"lanes_left_out": {}, "settings_left_out": {}, "fastest": "sequoia", "same_as_plain": []}
    over = {name: Estimate(rate / 100, rate / 110, rate / 90) for name, rate in rates.items()}
    words = shown(bench_parts(record | {"held": True}, over, ["--draft", "d"]))
    row = "planned tree * 210 2.10× [1.91, 2.33] 2.25× [1.92, 2.70] 2.62"
    assert set(row.split()) < set(words.split())  # intervals take two lines
    order = [words.index(name) for name in ("planned tree *", "best chain 180", "no draft 100", "HF generate 40.0")]
    assert order == sorted(order) and "is inside its predicted interval" in words
    assert words.endswith("Next: sequoia measure --draft d --temperature 0.6 --out vector.json")
    plain = {"fastest": None, "same_as_plain": ["sequoia", "adaptive"], "tree": {"size": 1, "depth": 0}, "held": True}
    words = shown(bench_parts(record | plain, over, ["--draft", "d"]))
    assert "*" not in words and "planned tree" not in words and "The plan is to decode without a draft" in words
    assert "No method is the fastest beyond the noise" in words and "have its figures: adaptive trees." in words


def test_every_command_says_its_result(said, tmp_path):
    tree, log, after = str(tmp_path / "tree.json"), tmp_path / "log.jsonl", tmp_path / "after"
    words = said("tree", "--acceptance", VECTOR, "--size", "12", "--depth", "3", "--out", tree)
    assert "3.26 tokens are expected per target pass" in words
    for format, option in (("choices", "max_total_draft_tokens"), ("vllm", "May 2026")):
        assert option in said("tree", "--acceptance", VECTOR, "--size", "9", "--depth", "3", "--format", format)
    assert "yours 3.257 the best of its size and depth 3.257" in said("score", "--acceptance", VECTOR, "--tree", tree)
    assert " 8 1.932 2.643 3.095" in said("table", "--acceptance", VECTOR, "--max-size", "200", "--max-depth", "9")
    log.write_text('{"prompt_ids": [1, 2, 3, 9], "token_ids": [1, 2, 3, 9, 1, 2, 3, 9]}\n' * 2)
    assert said("lookup", "--responses", str(log)).startswith("2 requests, 16 tokens.")
    after.write_text(vllm_text(*WIRED))
    assert "about 2.5 tokens per step instead of 1.0" in said("doctor", "--after", str(after))
    log.write_text('{"text": "import os"}')
    words = said("measure", "--width", "3", "--prompts", str(log), "--max-new-tokens", "12")
    assert "12 positions of 1 prompt" in words and "Nothing was saved" in words


def test_a_checked_server_has_a_row_for_each_length(shown):
    speed = {"predicted": Estimate(1.6, 1.6, 1.6).to_json(), "measured": Estimate(1.6123, 1.51, 1.72).to_json()}
    row = speed | {"k": 4, "tokens_per_sec": 100.0, "planned_from": False}
    row |= {"tokens_per_step": 2.5, "predicted_tokens_per_step": 2.4}
    result = {"engine": "vllm", "method": "draft", "requests": 16, "max_new_tokens": 128, "rows": [row], "notes": []}
    result |= {"median_abs_error": 0.0312, "best": 4, "chosen": 4, "chosen_over_best": speed["measured"]}
    words = shown(server_check_parts(result | {"same_text": 1.0}, None))
    assert "4 1.60× 1.61× [1.51, 1.72] 2.50 (2.40) 100.0" in words and "predicted to 3.12 %" in words


def test_a_sweep_ends_with_what_to_do_about_failures(shown):
    sweep = {"jobs": 4, "done": 3, "failed": 1, "skipped": 2, "failed_before": 0, "rows": 9, "seconds": 200.0}
    assert "3 of 4 jobs done, 1 failed, in 3 min: 9 rows" in shown(sweep_parts(sweep, Path("plan.toml"), Path("out")))


def test_a_servers_text_never_reaches_the_terminal_as_control_characters(tmp_path, capsys):
    path = tmp_path / "metrics"
    path.write_text(vllm_text(*WIRED).replace('model_name="', 'model_name="\x1b]0;pwned\x07\x1b[2J\u202e'))
    for command in ("doctor", "server-plan"):
        assert main([command, "--after", str(path)]) == 0
        assert "pwned" in (said := capsys.readouterr().out) and said.replace("\n", "").isprintable()
    report({}, False, [figures.table(("model",), [("\x1b[31mred",)])])
    assert "red" in (said := capsys.readouterr().out) and "\x1b" not in said
    assert main(["doctor", "--after", str(path), "--model", "other"]) == 2
    assert "pwned" in (said := capsys.readouterr().err) and said.strip().isprintable()
