"""Reports for people fit into 60 columns and suggest the next command."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.acceptance.conditions import SEQUOIA, Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.command_line import formatting
from sequoia_core.command_line.decode_commands import INCOMPLETE_CHARACTER
from sequoia_core.command_line.measure_reports import bench_report, generate_report, measure_report, profile_report
from sequoia_core.command_line.output import report
from sequoia_core.files.extras import has
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.profile import HardwareProfile

ASSETS = Path(__file__).parents[3] / "assets"
VECTOR = str(ASSETS / "acceptance" / "demo-t0.json")
PROFILE = str(ASSETS / "profiles" / "cpu-2core-bfloat16.json")
JAPANESE = "推測的デコーディングでは、小さな下書きモデルがトークンの木を提案する。" * 40


def files(tmp_path, probs, verify_sec, *, known: bool) -> list[str]:
    """Write a vector and a profile, with or without the names of the pair, and return their options."""
    vector = tmp_path / "vector.json"
    profile = tmp_path / "profile.json"
    names = {"target": "a", "draft": "b"}
    AcceptanceVector(np.array(probs), holds_for=Conditions("a", "b", 0.0, 1.0, SEQUOIA) if known else None).save(vector)
    HardwareProfile([1, 8, 16, 32], verify_sec, 0.001, dtype="float16", meta=names if known else {}).save(profile)
    return ["--acceptance", str(vector), "--profile", str(profile)]


def test_intervals_determine_the_number_of_digits():
    assert formatting.format_interval(2.25651, 2.08285, 2.44513, "×") == "2.26× [2.08, 2.45]"
    assert formatting.format_interval(77.3214, 77.31, 77.33, " %") == "77.321 % [77.310, 77.330]"
    assert formatting.format_interval(1.1, 0.04, 14.2, "×") == "1.1× [0.0, 14.2]"
    assert formatting.format_interval(0.5, None, None) == "0.500" and formatting.format_number(14.0) == "14.0"
    assert [formatting.format_duration(sec) for sec in (72.31e-6, 0.01446, 2.5)] == ["72.3 µs", "14.5 ms", "2.50 s"]


def test_plan_reports_the_tree_and_its_benefit(said):
    words = said("plan", "--acceptance", VECTOR, "--profile", PROFILE)
    assert words.startswith("Draft a tree with 13 nodes and depth 6: 2.54× [2.42, 2.65] the speed without a draft.")
    assert "tokens per step 3.85 [3.68, 4.01]" in words
    assert words.endswith(f" --acceptance {VECTOR} --profile {PROFILE}")


def test_plan_reports_missing_measurements_and_unprofitable_drafts(said, tmp_path):
    words = said("plan", *files(tmp_path, [0.6, 0.1, 0.05], [0.02, 0.02, 0.02, 0.02], known=False))
    assert words.startswith("Draft a tree with 32 nodes") and "the profile's largest size (32)" in words
    assert "There is no interval:" in words and "sequoia generate" not in words
    for command in ("measure --target TARGET --draft DRAFT", "profile --target TARGET --draft DRAFT"):
        assert f"sequoia {command} --out" in words
    words = said("plan", *files(tmp_path, [0.1, 0.05], [0.02, 0.04, 0.08, 0.16], known=True))
    assert words.startswith("Do not speculate: a token takes 20.0 ms without a draft and ")
    assert words.endswith("Next: sequoia bench --target a --draft b")


def test_plan_suggests_a_command_with_its_pair_and_sampling(said, tmp_path):
    given = files(tmp_path, [0.6, 0.1, 0.05], [0.02, 0.0202, 0.0206, 0.03], known=True)
    names = PairSpec(None, ASSETS / "demo" / "draft-large").names
    held = Conditions(*names, temperature=0.6, top_p=0.9, verifier="specinfer")
    AcceptanceVector(np.array([0.6, 0.1, 0.05]), holds_for=held).save(given[1])
    words = said("plan", *given)
    assert f"--target {DEMO_PAIR}/target --draft {DEMO_PAIR}/draft-large --temperature 0.6 --top-p 0.9" in words
    assert words.endswith(f"--verifier specinfer {' '.join(given)}")


def test_an_incomplete_last_character_is_dropped():
    cut = [INCOMPLETE_CHARACTER.sub("", text) for text in ("ab\ufffd", "\ufffd\ufffd", "a\ufffdb", "\ufffd" * 4)]
    assert cut == ["ab", "", "a\ufffdb", "\ufffd" * 4]  # many in a row come from the model


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("text", [JAPANESE, "x" * 500, "a\tb  \n    c\r\n"])
def test_generated_text_is_printed_verbatim(text, capsys):
    tree = {"size": 5, "depth": 4, "source": JAPANESE}  # folded within a sentence
    result = {"text": text, "tokens": [1] * 9, "steps": 3, "tokens_per_step": 3.0, "seconds": 2.0, "dtype": "float32"}
    models = ["--draft", "none"]
    tokenizer = ["--tokenizer", "model.gguf"]
    report({}, False, generate_report(result | {"tree": tree, "finished": "eos"}, models, tokenizer))
    out = capsys.readouterr().out
    if has("dynamic_trees"):
        assert out.endswith("lookup --responses answers.jsonl --tokenizer model.gguf\n")
    assert out.startswith(text) and JAPANESE in out.removeprefix(text).replace("\n", "")
    assert "9 tokens in 3 steps, 3.00 per step" in out


def test_ranks_never_accepted_share_a_row(shown):
    sums = np.array([[60.0, 4, 0, 0, 0], [50, 14, 0, 0, 0]])
    vector = AcceptanceVector(sums.sum(axis=0) / 128, prompt_sums=sums, prompt_trials=[64, 64])
    result = {"prompts": 2, "source": "its own text", "more_prompts": None, "resumed_prompts": 0}
    words = shown(measure_report(vector, result, within=0.01, models=[], out=None))
    assert "3 to 5 0 %, at most 2.31 %" in words and " 0.00 %" not in words
    alone = AcceptanceVector([0.5, 0, 0, 0.1, 0], prompt_sums=[[5, 0, 0, 1, 0]], prompt_trials=[10])
    words = shown(measure_report(alone, result, within=0.01, models=[], out=None))
    assert "2 to 3 0 % 4 █████ 10.0 % 5 0.00 %" in words


def test_a_profile_taken_on_a_busy_machine_is_marked(shown):
    known = {"load": {"share": 0.35, "processes": 1}, "gpu": {"driver": "570.133.20"}}
    profile = HardwareProfile([1, 8], [0.01, 0.02], 0.001, device="NVIDIA H200", meta=known)
    words = shown(profile_report(profile, (1, 0.5), None))
    assert "Another process used 35% of the machine" in words and "NVIDIA H200, driver 570.133.20" in words
    assert "the machine" not in shown(profile_report(replace(profile, meta={}), (1, 0.5), None))


@pytest.mark.parametrize(("share", "said"), [(1.0, False), (0.05, True)])
def test_a_profile_says_that_the_first_pass_drafts_all_depths(share, said, shown):
    profile = HardwareProfile([1, 8], [0.01, 0.02], 0.001, deeper_draft_share=share)
    assert ("first of a step take 5% of" in shown(profile_report(profile, (1, 0.5), None))) == said


def test_bench_lists_methods_by_speed(shown):
    rates = {"autoregressive": 100.0, "chain": 180.0, "sequoia": 210.0, "hf_generate": 40.0}
    record = {name: {"tokens_per_sec": rate, "tokens_per_step": rate / 80} for name, rate in rates.items()}
    record["sequoia"] |= {"predicted_speedup": 2.2501, "predicted_interval": [1.92, 2.7001]}
    settings = {"prompts": 8, "max_new_tokens": 128, "temperature": 0.6, "dtype": "bfloat16", "device": "a processor"}
    record |= {"settings": settings | {"calibration_prompts": 48}, "tree": {"size": 4, "depth": 3}, "chain_length": 3}
    record |= {"lanes_left_out": {}, "settings_left_out": {}, "fastest": "sequoia", "same_as_plain": []}
    record["load"] = {"share": 0.6, "processes": 2}
    over = {name: Estimate(rate / 100, rate / 110, rate / 90) for name, rate in rates.items()}
    words = shown(bench_report(record | {"held": True}, over, ["--draft", "d"]))
    row = "planned tree * 210 2.10× [1.91, 2.33] 2.25× [1.92, 2.70] 2.62"
    assert set(row.split()) < set(words.split())  # intervals fold
    order = [words.index(name) for name in ("planned tree *", "best chain 180", "no draft 100", "HF generate 40.0")]
    assert order == sorted(order) and "is inside its predicted interval" in words
    assert words.endswith("Next: sequoia measure --draft d --temperature 0.6 --out vector.json")
    assert "Two other processes used 60% of the machine while this was timed: repeat" in words
    plain = {
        "load": None,
        "fastest": None,
        "same_as_plain": ["sequoia", "adaptive"],
        "tree": {"size": 1, "depth": 0},
        "held": True,
    }
    words = shown(bench_report(record | plain, over, ["--draft", "d"]))
    assert "*" not in words and "planned tree" not in words and "The plan is to decode without a draft" in words
    assert (
        "No method is fastest by more than the noise" in words
        and "Identical to decoding without a draft: adaptive trees." in words
    )


def test_commands_print_readable_reports(said, tmp_path):
    tree = str(tmp_path / "tree.json")
    log = tmp_path / "log.jsonl"
    words = said("tree", "--acceptance", VECTOR, "--size", "12", "--depth", "3", "--out", tree)
    assert "Expected tokens per target pass: 3.26" in words
    for format, option in (("choices", "max_total_draft_tokens"), ("vllm", "May 2026")):
        assert option in said("tree", "--acceptance", VECTOR, "--size", "9", "--depth", "3", "--format", format)
    assert "yours 3.257 best of the same size and depth 3.257" in said("score", "--acceptance", VECTOR, "--tree", tree)
    assert " 8 1.932 2.643 3.095" in said("table", "--acceptance", VECTOR, "--max-size", "200", "--max-depth", "9")
    log.write_text('{"text": "import os"}')
    words = said("measure", "--width", "3", "--prompts", str(log), "--max-new-tokens", "12")
    assert "12 positions in 1 prompt" in words and "Nothing was saved" in words
