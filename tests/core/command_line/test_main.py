"""Every command with --json, and as a program."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sequoia_core.command_line.main import main
from sequoia_core.decoding.loop import decode
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.profile import HardwareProfile
from tests.chat_pair import save_chat_pair

ASSETS = Path(__file__).parents[3] / "assets"
VECTOR = str(ASSETS / "acceptance" / "llama3-70b-8b-cnn.json")
PROFILE = str(ASSETS / "profiles" / "cpu-2core.json")
SHORT = ["--max-new-tokens", "12"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"import {name}\n\n\ndef"}) + "\n" for name in ("os", "re", "json")))
    return str(path)


def test_tree(call, tmp_path):
    out = tmp_path / "tree.json"
    result = call("tree", "--acceptance", VECTOR, "--size", "12", "--depth", "3", "--out", str(out))
    assert (
        result["size"] == 12 and result["depth"] == 3 and result["parents"][0] == -1 and result["child_ranks"][0] == 0
    )
    assert json.loads(out.read_text())["parents"] == result["parents"]
    scored = call("score", "--acceptance", VECTOR, "--tree", str(out))
    assert scored["expected_tokens"] == pytest.approx(result["expected_tokens"])
    assert scored["optimal_expected_tokens"] == pytest.approx(scored["expected_tokens"])


def test_plan_doubts_times_that_fall_with_the_tokens(call, tmp_path):
    profile = {"format": "sequoia-profile", "version": 1, "sizes": [1, 2, 4], "draft_sec": 0.001}
    for seconds, doubted in (([0.02, 0.011, 0.006], True), ([0.02, 0.018, 0.021], False)):
        (tmp_path / "p.json").write_text(json.dumps(profile | {"verify_sec": seconds}))
        warnings = call("plan", "--acceptance", VECTOR, "--profile", str(tmp_path / "p.json"))["warnings"]
        assert any("A pass over 2 tokens takes 11 ms, one over 1 takes 20" in each for each in warnings) == doubted


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


def test_score_of_a_tree_too_large_for_the_search_says_what_is_missing(call, tmp_path):
    noisy, tree = tmp_path / "noisy.csv", tmp_path / "chain.json"
    noisy.write_text("0.2\n0.6\n")
    tree.write_text(json.dumps({"format": "sequoia-tree", "version": 1, "parents": list(range(-1, 150_000))}))
    scored = call("score", "--acceptance", str(noisy), "--tree", str(tree))
    assert (scored["size"], scored["depth"]) == (150_001, 150_000)
    assert scored["expected_tokens"] == pytest.approx(1.25)
    assert scored["optimal_expected_tokens"] is None and "150001" in scored["warning"]


@pytest.mark.slow
def test_score_of_a_chain_of_a_million_nodes(call, tmp_path):
    vector, tree = tmp_path / "vector.csv", tmp_path / "chain.json"
    vector.write_text("0.6\n0.2\n0.1\n")
    tree.write_text(json.dumps({"format": "sequoia-tree", "version": 1, "parents": list(range(-1, 999_999))}))
    scored = call("score", "--acceptance", str(vector), "--tree", str(tree))
    assert scored["size"] == 1_000_000 and 1 < scored["expected_tokens"] < scored["optimal_expected_tokens"]


@pytest.mark.parametrize("format", ["native", "growmap", "umbrella", "choices"])
def test_tree_formats_are_importable(format, call, tmp_path):
    out = tmp_path / ("tree.pt" if format == "growmap" else "tree.json")
    built = call("tree", "--acceptance", VECTOR, "--size", "9", "--out", str(out), "--format", format)
    scored = call("score", "--acceptance", VECTOR, "--tree", str(out))
    assert (scored["size"], scored["depth"]) == (built["size"], built["depth"])
    assert ("deprecates" in built.get("warning", "")) == (format == "choices")  # who still reads it


def test_table(call):
    result = call("table", "--acceptance", VECTOR, "--max-size", "6", "--max-depth", "2")
    rows = result["expected_tokens"]
    assert (
        len(rows) == 7 and len(rows[0]) == 3 and rows[0] == [None] * 3 and rows[1] == [1.0] * 3 and rows[2][0] is None
    )
    assert result["seconds"] >= 0


def test_plan(call):
    result = call("plan", "--acceptance", VECTOR, "--profile", PROFILE, "--max-size", "32", "--max-depth", "6")
    assert 1 <= result["size"] <= 32 and result["depth"] <= 6 and result["predicted_speedup"] >= 1.0
    assert result["expected_tokens"] > 1.0


def test_measure(call, prompts, tmp_path):
    out = tmp_path / "vector.json"
    result = call(
        "measure",
        "--prompts",
        prompts,
        "--temperature",
        "0.6",
        "--top-p",
        "0.9",
        "--width",
        "5",
        "--out",
        str(out),
        *SHORT,
    )
    assert len(result["probs"]) == len(result["ci_low"]) == len(result["ci_high"]) == 5
    assert result["trials"] <= 36 and result["seconds"] > 0
    assert call("tree", "--acceptance", str(out), "--size", "6")["size"] == 6


@pytest.mark.slow
def test_measure_says_how_many_more_prompts_and_goes_on_from_a_cut_run(call, prompts, tmp_path):
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    options = ["measure", "--temperature", "0.6", "--width", "4", "--prompts", prompts, *SHORT]
    full = call(*options, "--out", str(whole))
    assert full["more_prompts"] > 0 and full["more_prompts_for"] == "±0.01" and full["resumed_prompts"] == 0
    call(*options, "--prompt-count", "2", "--out", str(cut))
    record = json.loads(cut.read_text())
    record["meta"]["prompts_wanted"] = 3  # as a run leaves it that was cut after its second prompt
    cut.write_text(json.dumps(record))
    assert call(*options, "--out", str(cut))["resumed_prompts"] == 2
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())
    assert call(*options, "--out", str(cut))["resumed_prompts"] == 0  # complete: measured anew
    assert call(*options, "--resume", str(whole))["probs"] == full["probs"]


def test_measure_refuses_to_go_on_from_another_measurement(call, refusal, prompts, tmp_path):
    out = tmp_path / "vector.json"
    call("measure", "--prompts", prompts, "--width", "4", "--prompt-count", "1", "--out", str(out), *SHORT)
    before = out.read_text()
    options = ["measure", "--prompts", prompts, "--width", "5", "--out", str(out), *SHORT]
    assert f"--resume {out}: found 4 for width, expected 5" in refusal(*options, "--resume", str(out))
    out.write_text(before.replace('"prompts_wanted": 1', '"prompts_wanted": 3'))
    assert f"--out {out} (partial): found 4 for width" in refusal(*options)
    assert '"prompts_wanted": 3' in out.read_text()  # what was measured is still there


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
def test_a_target_on_disk_writes_the_same_text_and_its_profile_says_so(call, tmp_path, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.offload.packed_layers.cache_folder", lambda: tmp_path)
    options = ["generate", "--prompt", "def f(", "--dtype", "bfloat16", *SHORT]
    assert call(*options, "--offload", "disk")["tokens"] == call(*options)["tokens"]
    options = ["profile", "--sizes", "1,3", "--context", "16", "--repeats", "1"]
    assert call(*options, "--offload", "disk")["meta"]["offload"] == "disk"
    assert "offload" not in call(*options)["meta"]


@pytest.mark.slow
def test_a_target_alone_writes_what_transformers_writes(call, demo_pair):
    prompt = "def read_lines(path):\n"
    ids = torch.tensor([demo_pair.tokenizer.encode(prompt)])
    wanted = demo_pair.target.model.generate(ids, do_sample=False, max_new_tokens=48)[0, ids.shape[1] :].tolist()
    options = ["--draft", "none", "--prompt", prompt, "--max-new-tokens", "48", "--dtype", "float32"]
    result = call("generate", *options)
    assert result["tokens"] == wanted and result["text"] == demo_pair.tokenizer.decode(wanted)
    assert result["steps"] < len(wanted) and "text already seen" in result["tree"]["source"]
    small = call("generate", *options, "--profile", PROFILE)
    assert small["tokens"] == wanted and small["tree"]["size"] <= 64


@pytest.mark.slow
def test_a_model_alone_from_the_hubs_folder(tmp_path):
    folder = tmp_path / "hub" / "models--owner--alone"
    shutil.copytree(ASSETS / "demo" / "draft", folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    command = [sys.executable, "-m", "sequoia_core", "generate", "--target", "owner/alone", "--draft", "none"]
    run = subprocess.run(
        [*command, "--prompt", "x", "--json", *SHORT], capture_output=True, text=True, cwd=ASSETS.parent,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)["tokens"]) == 12


@pytest.mark.slow
def test_a_draft_with_less_context_is_named_in_one_line_and_costs_no_text(call, tmp_path):
    target, draft = save_chat_pair(tmp_path)
    config = Path(draft) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 16}))
    for prompt in ("x" * 8, "x" * 30):
        options = ["generate", "--target", target, "--raw", "--prompt", prompt, *SHORT]
        expected = (
            f"found a context of 16 tokens, expected {len(prompt) + 12} for the prompt and what follows: beyond 16"
        )
        with pytest.warns(UserWarning, match=f"^draft: {expected} the target goes on without it$"):
            found = call(*options, "--draft", draft)
        assert found["tokens"] == call(*options, "--draft", "none")["tokens"] and len(found["tokens"]) == 12
        assert found["steps"] == 12 or len(prompt) == 8
    command = [sys.executable, "-m", "sequoia_core", *options, "--draft", draft]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ASSETS.parent)
    assert (run.returncode, run.stderr) == (0, f"warning: draft: {expected} the target goes on without it\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure"],
        ["profile"],
        ["bench"],
        ["generate", "--prompt", "x", "--tree", "TREE"],
        ["generate", "--prompt", "x", "--acceptance", VECTOR],
    ],
)
def test_what_takes_two_models_refuses_one_before_it_is_loaded(arguments, refusal, monkeypatch, tmp_path):
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps({"format": "sequoia-tree", "version": 1, "parents": [-1, 0]}))
    monkeypatch.setattr("sequoia_core.models.loading.load_pair", lambda *_: pytest.fail("a model was loaded"))
    said = refusal(*(str(tree) if a == "TREE" else a for a in arguments), "--draft", "none")
    assert said.startswith("error: draft: found none, expected a draft model: ")


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk", "traversal"])
def test_generate(verifier, call):
    arguments = [
        "generate",
        "--prompt",
        "def add(a, b):\n",
        "--temperature",
        "0.7",
        "--seed",
        "3",
        "--verifier",
        verifier,
        *SHORT,
    ]
    result = call(*arguments)
    assert len(result["tokens"]) <= 12 and isinstance(result["text"], str)
    assert result["tokens_per_step"] == pytest.approx(len(result["tokens"]) / result["steps"])
    assert call(*arguments)["tokens"] == result["tokens"]


def test_the_verifier_is_the_policys_own_where_none_is_named(call, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "sequoia_core.decoding.loop.decode", lambda *own, **more: asked.append(more["verifier"]) or decode(*own, **more)
    )
    call("generate", "--prompt", "x", "--temperature", "0.6", "--max-new-tokens", "1")
    assert asked == [None]


def test_generate_with_a_tree_file_and_greedy_repeats_itself(call, tmp_path):
    tree = tmp_path / "tree.json"
    call("tree", "--acceptance", VECTOR, "--size", "5", "--out", str(tree))
    arguments = ["generate", "--prompt", "import os\n", "--temperature", "0", *SHORT]
    assert call(*arguments, "--tree", str(tree))["tokens"] == call(*arguments)["tokens"]


@pytest.mark.slow
def test_bench(call, prompts):
    result = call("bench", "--prompts", prompts, "--temperature", "0", "--max-new-tokens", "8")
    for method in ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia"):
        assert (
            result[method]["tokens_per_sec"] > 0
            and result[method]["tokens_per_step"] >= 1.0
            and result[method]["tokens"] == 16
        )
    assert result["predicted_speedup"] > 0 and result["measured_speedup"] > 0


def test_as_a_program():
    run = subprocess.run(
        [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", __file__, "--size", "5"],
        capture_output=True, text=True, cwd=ASSETS.parent,
    )  # fmt: skip
    assert run.returncode == 2 and run.stdout == "" and run.stderr.count("\n") == 1 and "Traceback" not in run.stderr


def test_generate_plans_only_from_what_holds(call):
    text = ("--prompt", "def f(", "--max-new-tokens", "4")
    warm = call("generate", *text, "--temperature", "0.9")
    assert "not planned: no acceptance vector" in warm["tree"]["source"] and warm["tree"]["size"] == 5
    vector = str(ASSETS / "acceptance" / "demo-t0.6.json")
    planned = call("generate", *text, "--acceptance", vector, "--profile", PROFILE)
    assert planned["tree"]["source"].startswith("planned for other measurements: temperature 0.6, not 0")


def test_a_machine_that_was_not_profiled_plans_by_the_profile_that_the_app_uses(monkeypatch, capsys):
    """Not a fixed chain, nor the first profile by name: the app's default, and a line that says so."""
    monkeypatch.setattr("sequoia_core.models.device.describe_device", lambda device: "Another, 9 threads")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    planned = []
    monkeypatch.setattr(
        "sequoia_core.design.planning.plan_tree", lambda *found: planned.append(found) or plan_tree(*found)
    )
    arguments = ["generate", "--prompt", "x", "--max-new-tokens", "1", "--dtype", "bfloat16", "--json"]
    assert main(arguments) == 0
    output, default = capsys.readouterr(), ASSETS / "profiles" / "cpu-2core-bfloat16.json"
    own = ASSETS / "acceptance" / "demo-t0.json"
    assert planned[0][0] == AcceptanceVector.load(own)
    assert planned[0][1].to_bytes() == HardwareProfile.load(default).to_bytes()
    tree = json.loads(output.out)["tree"]
    assert tree["source"].startswith("planned for other measurements: measured on Intel")
    assert tree["source"].endswith("not on Another, 9 threads")
    monkeypatch.setattr("sequoia_core.models.device.describe_device", lambda device: "Intel(R) Xeon(R) Processor, 9")
    monkeypatch.setattr("sequoia_core.native.instruction_sets.instructions_in_use", lambda: "AVX2")
    assert main(arguments) == 0
    unknown = json.loads(capsys.readouterr().out)["tree"]["source"]
    assert unknown.endswith("profile of the same processor name; instruction set not recorded")
    said = f"Decodes with a static tree of {tree['size']} nodes, {tree['depth']} deep: {tree['source']}"
    assert said in output.err and "--tree" in output.err


def test_plan_says_when_vector_and_profile_are_not_of_one_pair(call):
    own = call("plan", "--acceptance", str(ASSETS / "acceptance" / "demo-t0.json"), "--profile", PROFILE)
    assert own["warnings"] == [] and own["holds_for"]["target"] == "demo target"
    other = call("plan", "--acceptance", VECTOR, "--profile", PROFILE)
    assert "does not say which pair" in other["warnings"][0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("options", [["--json"], []])
def test_output_that_cannot_be_written_is_one_line(options):
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", VECTOR, "--size", "5", *options],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ASSETS.parent,
        )  # fmt: skip
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "No space left on device" in run.stderr


@pytest.mark.parametrize("options", [["--json"], [], ["--help"]])  # written by print, by rich, by typer
def test_a_reader_that_stops_early_ends_it_quietly_as_other_programs(options):
    command = [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", VECTOR, "--size", "5", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ASSETS.parent, text=True) as run:
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("options", [["--json"], []])
def test_output_that_goes_nowhere_is_no_fault(options):
    command = [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", VECTOR, "--size", "5", *options]
    run = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], cwd=ASSETS.parent, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_letters_that_the_terminal_lacks_do_not_cost_the_result():
    command = [sys.executable, "-m", "sequoia_core", "tree", "--acceptance", VECTOR, "--size", "300"]
    run = subprocess.run(
        command, cwd=ASSETS.parent, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert run.returncode == 0 and b"0 \\xd7 " in run.stdout


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SEQUOIA_INSTRUCTIONS", "junk", "found 'junk', expected one of amx, "),
        ("SEQUOIA_INSTRUCTIONS", "amx", "the processor lacks amx_bf16"),
        ("SEQUOIA_NATIVE", "no", "found 'no', expected 0 or 1"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [["generate", "--prompt", "x"], ["profile", "--target-shape", "demo-target", "--draft-shape", "demo-draft"]],
)
def test_wishes_of_the_environment_that_cannot_be_met_are_named(command, name, value, said, monkeypatch, refusal):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sequoia_core.native.instruction_sets.processor_flags", lambda: "flags : avx2 fma amx_tile")
    error = refusal(*command)
    assert name in error and said in error


def test_lookup_replays_a_log_without_a_model(call, tmp_path):
    """Token ids are exact; the same requests as text are an estimate."""
    ids = tmp_path / "ids.jsonl"
    ids.write_text(
        "\n".join(json.dumps({"prompt_ids": [1, 2, 3, 4, 9], "token_ids": [1, 2, 3, 4, 9] * 4}) for _ in "ab")
    )
    found = call("lookup", "--responses", str(ids))
    assert found["requests"] == 2 and found["tokens"] == 40 and found["exact"]
    own, shared = found["tokens_per_step"]["own"], found["tokens_per_step"]["shared"]
    assert set(own) == set(shared) == {"2", "4", "8", "16", "32", "64"}
    assert 1.0 < own["2"] < own["16"] <= shared["16"]
    assert all(low <= own[n] <= high for n, (low, high) in found["interval"]["own"].items())
    assert found["best_n"] in (8, 16, 32) and found["predicted_speedup"] is None
    assert len(found["warnings"]) == 1 and "without a profile" in found["warnings"][0]

    text = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "def f(a): return a"}, {"role": "assistant", "content": "def f(a): return a"}]
    text.write_text(json.dumps({"messages": turns}))
    profile = str(ASSETS / "profiles" / "cpu-2core.json")
    again = call("lookup", "--responses", str(text), "--profile", profile)
    assert not again["exact"] and "estimate" in again["warnings"][0]
    assert again["predicted_speedup"] > 1.0


def test_lookup_refuses_what_is_no_log_and_no_tokenizer(tmp_path, refusal):
    log, other = tmp_path / "log.jsonl", tmp_path / "tokenizer.json"
    log.write_text('{"prompt": "a", "response": "b"}')
    other.write_text("{}")
    assert "tokenizer.json: found no tokenizer" in refusal("lookup", "--responses", str(log), "--tokenizer", str(other))
    log.write_text('{"text": "a"}')
    assert "line 1: found keys text" in refusal("lookup", "--responses", str(log))
