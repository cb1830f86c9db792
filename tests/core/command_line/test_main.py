"""Commands with --json, and as a subprocess."""

import copy
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.command_line import progress
from sequoia_core.command_line.default_trees import shipped_measurements
from sequoia_core.command_line.main import main
from sequoia_core.models.device import describe_device
from sequoia_core.models.installation import installation_id
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.profile import HardwareProfile
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
    assert built["size"] == 9 and "TensorRT-LLM 1.4 removed eagle_choices" in built["warning"]
    scored = call("score", "--acceptance", VECTOR, "--tree", str(out))
    assert (scored["size"], scored["depth"]) == (built["size"], built["depth"])
    assert scored["expected_tokens"] == pytest.approx(built["expected_tokens"])
    assert scored["optimal_expected_tokens"] == pytest.approx(scored["expected_tokens"])


def test_score_warns_about_unmeasured_ranks(call, tmp_path):
    (tmp_path / "two.json").write_text("[0.5, 0.2]")
    (tmp_path / "paths.json").write_text("[[0], [1], [2], [3], [0, 0]]")
    scored = call("score", "--acceptance", str(tmp_path / "two.json"), "--tree", str(tmp_path / "paths.json"))
    assert scored["expected_tokens"] == pytest.approx(1.95)
    assert scored["warning"].startswith("Ranks 3 to 4 were never measured: 2 of 6 nodes")


def test_the_entries_option_declares_the_layout(call, refusal, tmp_path):
    (tmp_path / "rest.csv").write_text("0.3\n0.5\n0.2\n")
    shape = "tree", "--acceptance", str(tmp_path / "rest.csv"), "--size", "3"
    assert call(*shape, "--entries", "rest-first")["expected_tokens"] == pytest.approx(1.75)
    assert "--entries rest-first, rest-last or ranks" in refusal(*shape)


def test_impossible_shapes_are_null_in_the_table(call):
    rows = call("table", "--acceptance", VECTOR, "--max-size", "6", "--max-depth", "2")["expected_tokens"]
    assert len(rows) == 7 and rows[:2] == [[None] * 3, [1.0] * 3] and rows[2][0] is None


def test_measure_resumes_an_interrupted_run(call, refusal, prompts, tmp_path):
    whole = tmp_path / "whole.json"
    cut = tmp_path / "cut.json"
    options = ["measure", "--temperature", "0.6", "--prompts", prompts, *SHORT]
    full = call(*options, "--width", "4", "--out", str(whole))
    call(*options, "--width", "4", "--prompt-count", "2", "--out", str(cut))
    partial = cut.read_text().replace('"prompts_wanted": 2', '"prompts_wanted": 3')  # as if interrupted
    cut.write_text(partial)
    assert f"--out {cut} (partial): found 4 for width" in refusal(*options, "--width", "5", "--out", str(cut))
    assert cut.read_text() == partial  # the measurement is still there
    assert call(*options, "--width", "4", "--out", str(cut))["resumed_prompts"] == 2
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())
    assert call(*options, "--width", "4", "--out", str(cut))["resumed_prompts"] == 0  # complete, so it starts again
    assert call(*options, "--width", "4", "--resume", str(whole))["probs"] == full["probs"]


def test_measure_reads_own_text_from_a_column(call, tmp_path):
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
def test_generate_is_reproducible_with_every_verifier(call):
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


def test_generate_describes_its_phases(call, monkeypatch):
    parts = []
    lines = progress.ProgressLines
    monkeypatch.setattr(progress, "ProgressLines", lambda doing, **more: parts.append(doing) or lines(**more))
    call("generate", "--prompt", "x", "--max-new-tokens", "2")
    assert parts == ["starting PyTorch", "loading the models", "choosing trees", "reading the prompt"]


def test_shipped_measurements_of_other_targets_are_skipped(tiny_target):
    pair = pair_of(tiny_target)
    assert list(shipped_measurements(pair, "acceptance")) == list(shipped_measurements(pair, "profiles")) == []
    tiny = replace(pair, target=copy.copy(tiny_target))
    tiny.target.name = "demo target"
    found = [path.name for path in shipped_measurements(tiny, "acceptance")]
    assert found[0] == "demo-t0.json" and "llama3-70b-8b-cnn.json" not in found


def test_generate_plans_only_from_matching_measurements(call):
    text = ("--prompt", "def f(", "--max-new-tokens", "4")
    warm = call("generate", *text, "--temperature", "0.9")
    assert "not planned: no acceptance vector" in warm["tree"]["source"] and warm["tree"]["size"] == 4
    vector = str(ASSETS / "acceptance" / "demo-t0.6.json")
    planned = call("generate", *text, "--acceptance", vector, "--profile", PROFILE)
    assert planned["tree"]["source"].startswith("planned for different conditions: temperature 0.6, not 0")


@pytest.mark.parametrize(("installation", "own"), [("this", True), ("another", False), (None, False)])
def test_profiles_of_other_installations_are_reported(installation, own, call, tmp_path, capsys):
    shipped = HardwareProfile.load(PROFILE)
    meta = {"instructions": None, "installation": installation_id() if own else installation}
    path = tmp_path / "profile.json"
    replace(shipped, device=describe_device("cpu"), meta=shipped.meta | meta).save(path)
    asked = ("generate", "--prompt", "x", "--max-new-tokens", "1", "--dtype", "float32", "--profile", str(path))
    source = call(*asked)["tree"]["source"]
    wanted = "this pair, these settings and this machine" if own else f"different conditions: {NOT_HERE}"
    assert source == f"planned for {wanted}"
    main(["plan", "--acceptance", str(ASSETS / "acceptance" / "demo-t0.json"), "--profile", str(path)])
    assert ("may not have been measured with this installation" not in " ".join(capsys.readouterr().out.split())) == own


@pytest.mark.slow
def test_unprofiled_machines_use_the_apps_default_profile(call, monkeypatch):
    planned = []
    monkeypatch.setattr(
        "sequoia_core.planning.plan.plan_tree", lambda *found: planned.append(found) or plan_tree(*found)
    )
    arguments = ["generate", "--prompt", "x", "--max-new-tokens", "1", "--dtype", "bfloat16"]
    monkeypatch.setattr("sequoia_core.models.device.describe_device", lambda device: "Another, 9 threads")
    call(*arguments)
    assert planned[0][0] == AcceptanceVector.load(ASSETS / "acceptance" / "demo-t0.json")
    default = HardwareProfile.load(ASSETS / "profiles" / "cpu-2core-bfloat16.json")
    assert planned[0][1].to_bytes() == default.to_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_unwritable_output_is_reported_in_one_line():
    with open("/dev/full", "w") as full:
        run = subprocess.run(PROGRAM, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ASSETS.parent)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "No space left on device" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--json"], [], ["--help"]])  # printed by print, Rich and Typer
def test_a_broken_pipe_ends_the_command_quietly(options):
    command = [*PROGRAM, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ASSETS.parent, text=True) as run:
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 128 + signal.SIGPIPE


def test_a_closed_stdout_is_no_error():
    run = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *PROGRAM], cwd=ASSETS.parent, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
def test_unencodable_characters_are_escaped():
    ascii = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run([*PROGRAM[:-1], "300"], cwd=ASSETS.parent, capture_output=True, env=ascii)
    assert run.returncode == 0 and b"0 \\xd7 " in run.stdout
