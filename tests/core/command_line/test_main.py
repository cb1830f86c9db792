"""Every command with --json, and as a program."""

import copy
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sequoia_core.command_line import progress
from sequoia_core.command_line.decode_commands import _shipped_of
from sequoia_core.command_line.main import main
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.models.device import describe_device
from sequoia_core.models.installation import installation_id
from sequoia_core.native.instruction_sets import instructions_in_use
from tests.conftest import pair_of

ASSETS = Path(__file__).parents[3] / "assets"
VECTOR = str(ASSETS / "acceptance" / "llama3-70b-8b-cnn.json")
PROFILE = str(ASSETS / "profiles" / "cpu-2core.json")
NOT_HERE = "measured on a machine of the same name, perhaps not this one"
SHORT = ["--max-new-tokens", "12"]
PROGRAM = [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", VECTOR, "--size", "5"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"import {name}\n\n\ndef"}) + "\n" for name in ("os", "re", "json")))
    return str(path)


def test_a_tree_is_written_and_scored(call, tmp_path):
    out = tmp_path / "tree.json"
    built = call("tree", "--acceptance", VECTOR, "--size", "9", "--out", str(out), "--format", "choices")
    assert built["size"] == 9 and "TensorRT-LLM 1.4 removed eagle_choices" in built["warning"]  # who still reads it
    scored = call("score", "--acceptance", VECTOR, "--tree", str(out))
    assert (scored["size"], scored["depth"]) == (built["size"], built["depth"])
    assert scored["expected_tokens"] == pytest.approx(built["expected_tokens"])
    assert scored["optimal_expected_tokens"] == pytest.approx(scored["expected_tokens"])


def test_score_says_which_ranks_were_never_measured(call, tmp_path):
    (tmp_path / "two.json").write_text("[0.5, 0.2]")
    (tmp_path / "paths.json").write_text("[[0], [1], [2], [3], [0, 0]]")
    scored = call("score", "--acceptance", str(tmp_path / "two.json"), "--tree", str(tmp_path / "paths.json"))
    assert scored["expected_tokens"] == pytest.approx(1.95)
    assert scored["warning"].startswith("Ranks 3 to 4 were never measured: 2 of 6 nodes")


def test_what_entries_are_can_be_said(call, refusal, tmp_path):
    (tmp_path / "rest.csv").write_text("0.3\n0.5\n0.2\n")
    shape = "tree", "--acceptance", str(tmp_path / "rest.csv"), "--size", "3"
    assert call(*shape, "--entries", "rest-first")["expected_tokens"] == pytest.approx(1.75)
    assert "--entries rest-first, rest-last or ranks" in refusal(*shape)


def test_a_table_is_null_where_there_is_no_tree(call):
    rows = call("table", "--acceptance", VECTOR, "--max-size", "6", "--max-depth", "2")["expected_tokens"]
    assert len(rows) == 7 and rows[:2] == [[None] * 3, [1.0] * 3] and rows[2][0] is None


def test_measure_goes_on_from_a_cut_run(call, refusal, prompts, tmp_path):
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    options = ["measure", "--temperature", "0.6", "--prompts", prompts, *SHORT]
    full = call(*options, "--width", "4", "--out", str(whole))
    call(*options, "--width", "4", "--prompt-count", "2", "--out", str(cut))
    partial = cut.read_text().replace('"prompts_wanted": 2', '"prompts_wanted": 3')  # as cut after the second prompt
    cut.write_text(partial)
    assert f"--out {cut} (partial): found 4 for width" in refusal(*options, "--width", "5", "--out", str(cut))
    assert cut.read_text() == partial  # what was measured is still there
    assert call(*options, "--width", "4", "--out", str(cut))["resumed_prompts"] == 2
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())
    assert call(*options, "--width", "4", "--out", str(cut))["resumed_prompts"] == 0  # complete: measured anew
    assert call(*options, "--width", "4", "--resume", str(whole))["probs"] == full["probs"]


def test_measure_on_own_text_from_a_column(call, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('id,body\n1,"import os, sys\n\ndef main():\n"\n2,class A:\n')
    result = call("measure", "--prompts", str(path), "--column", "body", "--own-text", "--width", "3")
    assert "own text" in result["source"] and result["prompts"] == 2 and len(result["probs"]) == 3


def test_profile(call, tmp_path):
    out = tmp_path / "profile.json"
    result = call("profile", "--sizes", "1,3", "--context", "16", "--repeats", "2", "--out", str(out))
    assert result["sizes"] == [1, 3] and len(result["verify_sec"]) == 2 and result["draft_sec"] > 0 and result["device"]
    assert call("plan", "--acceptance", VECTOR, "--profile", str(out))["size"] <= 3


@pytest.mark.slow
def test_a_target_alone_writes_the_same_text_by_trees_of_text_already_seen(call):
    options = ["generate", "--prompt", "def read_lines(path):\n", "--max-new-tokens", "48", "--dtype", "float32"]
    alone = call(*options, "--draft", "none", "--profile", PROFILE)
    assert alone["tokens"] == call(*options)["tokens"] and alone["steps"] < len(alone["tokens"])
    assert "text already seen" in alone["tree"]["source"] and alone["tree"]["size"] <= 64


@pytest.mark.slow
def test_generate_repeats_itself_with_every_verifier(call):
    arguments = ["generate", "--prompt", "def add(a, b):\n", "--temperature", "0.7", "--seed", "3", *SHORT]
    for verifier in ("sequoia", "traversal"):
        result = call(*arguments, "--verifier", verifier)
        assert result["tokens_per_step"] == pytest.approx(len(result["tokens"]) / result["steps"])
        assert call(*arguments, "--verifier", verifier)["tokens"] == result["tokens"]


@pytest.mark.slow
def test_bench(call, prompts):
    result = call("bench", "--prompts", prompts, "--temperature", "0", "--max-new-tokens", "8")
    for method in ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia"):
        assert result[method]["tokens_per_step"] >= 1.0 and result[method]["tokens"] == 16
    assert result["predicted_speedup"] > 0 and result["measured_speedup"] > 0


def test_generate_says_of_each_part_what_it_is_doing(call, monkeypatch):
    parts, lines = [], progress.ProgressLines
    monkeypatch.setattr(progress, "ProgressLines", lambda doing, **more: parts.append(doing) or lines(**more))
    call("generate", "--prompt", "x", "--max-new-tokens", "2")
    assert parts == ["starting PyTorch", "loading the models", "choosing trees", "reading the prompt"]


def test_shipped_measurements_of_other_targets_are_not_read(tiny_target):
    pair = pair_of(tiny_target)
    assert list(_shipped_of(pair, "acceptance")) == list(_shipped_of(pair, "profiles")) == []
    tiny = replace(pair, target=copy.copy(tiny_target))
    tiny.target.name = "demo target"
    found = [path.name for path in _shipped_of(tiny, "acceptance")]
    assert found[0] == "demo-t0.json" and "llama3-70b-8b-cnn.json" not in found


def test_generate_plans_only_from_what_holds(call):
    text = ("--prompt", "def f(", "--max-new-tokens", "4")
    warm = call("generate", *text, "--temperature", "0.9")
    assert "not planned: no acceptance vector" in warm["tree"]["source"] and warm["tree"]["size"] == 5
    vector = str(ASSETS / "acceptance" / "demo-t0.6.json")
    planned = call("generate", *text, "--acceptance", vector, "--profile", PROFILE)
    assert planned["tree"]["source"].startswith("planned for other measurements: temperature 0.6, not 0")


@pytest.mark.parametrize(("installation", "own"), [("this", True), ("another", False), (None, False)])
def test_only_times_of_this_installation_are_of_this_machine(installation, own, call, tmp_path, capsys):
    shipped = HardwareProfile.load(PROFILE)
    meta = {"instructions": instructions_in_use(), "installation": installation_id() if own else installation}
    path = tmp_path / "profile.json"
    replace(shipped, device=describe_device("cpu"), meta=shipped.meta | meta).save(path)
    asked = ("generate", "--prompt", "x", "--max-new-tokens", "1", "--dtype", "float32", "--profile", str(path))
    source = call(*asked)["tree"]["source"]
    wanted = "this pair, these settings and this machine" if own else f"other measurements: {NOT_HERE}"
    assert source == f"planned for {wanted}"
    main(["plan", "--acceptance", str(ASSETS / "acceptance" / "demo-t0.json"), "--profile", str(path)])
    assert ("nothing says that this installation measured them" not in " ".join(capsys.readouterr().out.split())) == own


@pytest.mark.slow
def test_a_machine_that_was_not_profiled_plans_by_the_profile_that_the_app_uses(call, monkeypatch):
    """Not a fixed chain, nor the first profile by name: the app's default."""
    planned = []
    monkeypatch.setattr(
        "sequoia_core.design.planning.plan_tree", lambda *found: planned.append(found) or plan_tree(*found)
    )
    arguments = ["generate", "--prompt", "x", "--max-new-tokens", "1", "--dtype", "bfloat16"]
    monkeypatch.setattr("sequoia_core.models.device.describe_device", lambda device: "Another, 9 threads")
    call(*arguments)
    assert planned[0][0] == AcceptanceVector.load(ASSETS / "acceptance" / "demo-t0.json")
    default = HardwareProfile.load(ASSETS / "profiles" / "cpu-2core-bfloat16.json")
    assert planned[0][1].to_bytes() == default.to_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        run = subprocess.run(PROGRAM, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ASSETS.parent)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "No space left on device" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--json"], [], ["--help"]])  # written by print, by rich, by typer
def test_a_reader_that_stops_early_ends_it_quietly_as_other_programs(options):
    command = [*PROGRAM, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ASSETS.parent, text=True) as run:
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 128 + signal.SIGPIPE


def test_output_that_goes_nowhere_is_no_fault():
    run = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *PROGRAM], cwd=ASSETS.parent, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
def test_letters_that_the_terminal_lacks_do_not_cost_the_result():
    ascii = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run([*PROGRAM[:-1], "300"], cwd=ASSETS.parent, capture_output=True, env=ascii)
    assert run.returncode == 0 and b"0 \\xd7 " in run.stdout


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SEQUOIA_INSTRUCTIONS", "junk", "found 'junk', expected one of amx, "),
        ("SEQUOIA_INSTRUCTIONS", "amx", "SEQUOIA_INSTRUCTIONS=amx: the processor lacks amx_bf16"),
        ("SEQUOIA_NATIVE", "no", "SEQUOIA_NATIVE: found 'no', expected 0 or 1"),
    ],
)
def test_wishes_of_the_environment_that_cannot_be_met_are_named(name, value, said, monkeypatch, refusal):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sequoia_core.native.instruction_sets.processor_flags", lambda: "flags : avx2 fma amx_tile")
    assert said in refusal("generate", "--prompt", "x")


def test_lookup_replays_a_log_without_a_model(call, tmp_path):
    """Token ids are exact; the same requests as text are an estimate."""
    ids, text = tmp_path / "ids.jsonl", tmp_path / "chat.jsonl"
    ids.write_text('{"prompt_ids": [1, 2, 3, 4, 9], "token_ids": [1, 2, 3, 4, 9, 1, 2, 3, 4, 9, 1, 2, 3, 4, 9]}\n' * 2)
    found = call("lookup", "--responses", str(ids))
    assert found["requests"] == 2 and found["tokens"] == 30 and found["exact"]
    own, shared = found["tokens_per_step"]["own"], found["tokens_per_step"]["shared"]
    assert 1.0 < own["2"] < own["16"] <= shared["16"]
    assert all(low <= own[n] <= high for n, (low, high) in found["interval"]["own"].items())
    text.write_text('{"prompt": "def f(a): return a", "response": "def f(a): return a"}')
    again = call("lookup", "--responses", str(text), "--profile", PROFILE)
    assert not again["exact"] and "estimate" in again["warnings"][0] and again["predicted_speedup"] > 1.0
