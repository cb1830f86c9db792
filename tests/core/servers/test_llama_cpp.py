"""llama.cpp's real server (the wheel xllamacpp): our flags pass its parser, its counts agree with our own engine.

Counts are compared, never speed. Each server runs on the loopback address and bounded.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.own_answers import served_by_us
from sequoia_core.command_line.main import main
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.models.loading import load_pair
from sequoia_core.servers.chain_acceptance import chain_acceptance
from sequoia_core.servers.check import counts_of, server_command, start_and_ask
from sequoia_core.servers.flags import METHODS, server_flags
from sequoia_core.studies.race import own_method
from tests.gguf_files import need_llama_cpp, write_demo

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "scripts" / "llama_server.py"
PROGRAM = f"{sys.executable} {SERVER} --ctx-size 512 --parallel 1 --threads 1 --threads-batch 1"
NEW_TOKENS = 48


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    need_llama_cpp()


def running() -> list[int]:
    """Return the servers that this test process started; a second one, run beside it, has its own."""
    found = []
    for process in psutil.process_iter(["cmdline", "status", "environ"]):
        words, environment = process.info["cmdline"] or (), process.info["environ"] or {}
        ours = environment.get("PYTEST_XDIST_WORKER") == os.environ.get("PYTEST_XDIST_WORKER")
        if str(SERVER) in words and ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The demo pair as GGUF in float32, in which batched passes give the same tokens."""
    folder = tmp_path_factory.mktemp("gguf")
    return {name: write_demo(name, folder / f"{name}.gguf", "float32") for name in ("target", "draft")}


@pytest.fixture(scope="module")
def prompts(demo_pair) -> list[list[int]]:
    rows = (ROOT / "assets" / "prompts" / "not-looping.jsonl").read_text().splitlines()[:4]
    return [demo_pair.tokenizer.encode(json.loads(row)["text"]) for row in rows]


@pytest.mark.sample(2 * len(METHODS))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [0, 8])
def test_our_flags_pass_the_real_parser(method, k):
    found = checked(server_flags("llama.cpp", k, method=method))
    draft = {"draft": "SIMPLE"}.get(method, method.upper())
    if k == 0:
        assert set(found["types"]) == {"NONE"}
    elif method == "ngram":
        assert (found["types"][-1], found["ngram_n_max"]) == ("NGRAM_MOD", k)
    else:
        assert (found["types"][-1], found["draft_n_max"], found["draft_p_min"]) == (f"DRAFT_{draft}", k, 0)


@pytest.mark.parametrize("drafter", ["draft-dspark", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache"])
def test_each_drafter_that_a_log_names_is_one_that_the_parser_knows(drafter):
    found = checked(server_flags("llama.cpp", 8, method="ngram", drafter=drafter))
    assert found["types"][-1] == drafter.upper().replace("-", "_")


def checked(text: str) -> dict:
    """Return what llama.cpp's parser reads from flags."""
    flags = shlex.split(text)
    run = subprocess.run([sys.executable, SERVER, "--check", *flags], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_counts_and_text_are_those_of_our_own_engine(files, prompts, demo_pair):
    """One chain of 4 and none: the same tokens, and the same drafts accepted as far."""
    commands = {k: server_command("llama.cpp", PROGRAM, str(files["target"]), str(files["draft"]), k) for k in (0, 4)}
    found = start_and_ask(commands, "llama.cpp", prompts, NEW_TOKENS, one_at_a_time=True)
    assert [each.text for each in found[4]] == [each.text for each in found[0]]
    assert all(each.counts is None and each.tokens == NEW_TOKENS - 1 for each in found[0])
    counts = counts_of(found[4])
    assert (counts.engine, len(counts.positions), counts.requests_done) == ("llama.cpp", 4, len(prompts))
    assert not counts.censored and counts.coverage > 0.95  # where one token is left, nothing is drafted

    ours = own_method(demo_pair, chain_tree(4), SamplingConfig(0.0))
    decoded = [ours(ids, NEW_TOKENS, 0, lambda share: None) for ids in prompts]
    assert [demo_pair.tokenizer.decode(each.output) for each in decoded] == [each.text for each in found[4]]
    by_library = load_pair(files["target"], files["draft"], tokenizer=ROOT / "assets" / "demo" / "target")
    same = own_method(by_library, k_ary_tree(2, 4), SamplingConfig(0.0))  # the server's library, by our own trees
    texts = [demo_pair.tokenizer.decode(same(ids, NEW_TOKENS, 0, lambda share: None).output) for ids in prompts]
    assert texts == [each.text for each in found[0]]
    own = counts_of([served_by_us(each, 4) for each in decoded])
    # the server's first token comes with the prompt, ours from a step: up to a draft each apart, and at answers' ends
    assert abs(own.drafts - counts.drafts) <= 2 * len(prompts)
    there, here = chain_acceptance(counts), chain_acceptance(own)
    assert np.abs(there.survival - here.survival).max() < 0.08
    assert ((there.low <= here.survival) & (here.survival <= there.high)).all()


@pytest.mark.slow
def test_the_command_plans_from_three_settings_and_predicts_the_fourth(files, tmp_path, capsys):
    out = tmp_path / "check.json"
    options = ["--engine", "llama.cpp", "--program", PROGRAM, "--settings", "0,1,2,4", "--prompt-count", "3"]
    options += ["--target", str(files["target"]), "--draft", str(files["draft"]), "--max-new-tokens", "64"]
    options += ["--tokenizer", str(ROOT / "assets" / "demo" / "target" / "tokenizer.json"), "--out", str(out), "--json"]
    assert main(["server-check", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == result
    assert [(row["k"], row["planned_from"]) for row in result["rows"]] == [(0, True), (1, False), (2, True), (4, True)]
    assert result["same_text"] == 1.0 and result["requests"] == 3
    assert all(row["predicted_tokens_per_step"] >= 1 for row in result["rows"])


@pytest.mark.slow
def test_a_command_that_is_ended_takes_its_servers_along(files):
    options = ["--engine", "llama.cpp", "--program", PROGRAM, "--settings", "0,1,2", "--max-new-tokens", "400"]
    options += ["--target", str(files["target"]), "--draft", str(files["draft"]), "--prompt-count", "200"]
    check = subprocess.Popen([sys.executable, "-m", "sequoia_core", "server-check", *options], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while len(running()) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        check.send_signal(signal.SIGTERM)
        assert check.wait(60) == 130
        assert not running(), "a server is still there"
    finally:
        check.kill()
        check.wait()
