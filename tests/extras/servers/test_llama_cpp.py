"""llama.cpp's real server (the wheel xllamacpp): our flags pass its parser, its counts agree with our own engine.

Counts are compared, never speed. Each server runs on the loopback address and bounded.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.own_answers import served_by_us
from benchmarks.server_check import server_command, start_and_ask, total_counts
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.measuring.race import tree_method
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_extras.servers.chain_acceptance import chain_acceptance
from sequoia_extras.servers.flags import METHODS, server_flags
from tests.gguf_files import need_llama_cpp, write_demo

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "scripts" / "llama_server.py"
PROGRAM = f"{sys.executable} {SERVER} --ctx-size 512 --parallel 1 --threads 1 --threads-batch 1"
NEW_TOKENS = 48


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    need_llama_cpp()


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
def test_flags_are_accepted_by_the_real_parser(method, k):
    found = checked(server_flags("llama.cpp", k, method=method))
    draft = {"draft": "SIMPLE"}.get(method, method.upper())
    if k == 0:
        assert set(found["types"]) == {"NONE"}
    elif method == "ngram":
        assert (found["types"][-1], found["ngram_n_max"]) == ("NGRAM_MOD", k)
    else:
        assert (found["types"][-1], found["draft_n_max"], found["draft_p_min"]) == (f"DRAFT_{draft}", k, 0)


@pytest.mark.parametrize("drafter", ["draft-dspark", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache"])
def test_drafters_in_logs_are_known_to_the_parser(drafter):
    found = checked(server_flags("llama.cpp", 8, method="ngram", drafter=drafter))
    assert found["types"][-1] == drafter.upper().replace("-", "_")


def checked(text: str) -> dict:
    """Return what llama.cpp's parser reads from flags."""
    flags = shlex.split(text)
    run = subprocess.run([sys.executable, SERVER, "--check", *flags], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_counts_and_text_match_our_engine(files, prompts, demo_pair):
    """One chain of 4 and none: the same tokens, and the same drafts accepted as far."""
    commands = {k: server_command("llama.cpp", PROGRAM, str(files["target"]), str(files["draft"]), k) for k in (0, 4)}
    found = start_and_ask(commands, "llama.cpp", prompts, NEW_TOKENS)
    assert [each.text for each in found[4]] == [each.text for each in found[0]]
    assert all(each.counts is None and each.tokens == NEW_TOKENS - 1 for each in found[0])
    counts = total_counts(found[4])
    assert (counts.engine, len(counts.positions), counts.requests_done) == ("llama.cpp", 4, len(prompts))
    assert not counts.censored and counts.coverage > 0.95  # where one token is left, nothing is drafted

    ours = tree_method(demo_pair, chain_tree(4), SamplingConfig(0.0))
    decoded = [ours(ids, NEW_TOKENS, 0, lambda share: None) for ids in prompts]
    assert [demo_pair.tokenizer.decode(each.output) for each in decoded] == [each.text for each in found[4]]
    by_library = load_pair(files["target"], files["draft"], tokenizer=ROOT / "assets" / "demo" / "target")
    same = tree_method(by_library, k_ary_tree(2, 4), SamplingConfig(0.0))  # the server's library, by our own trees
    texts = [demo_pair.tokenizer.decode(same(ids, NEW_TOKENS, 0, lambda share: None).output) for ids in prompts]
    assert texts == [each.text for each in found[0]]
    own = total_counts([served_by_us(each, 4) for each in decoded])
    # the server's first token comes with the prompt, ours from a step: up to a draft each apart, and at answers' ends
    assert abs(own.drafts - counts.drafts) <= 2 * len(prompts)
    there, here = chain_acceptance(counts), chain_acceptance(own)
    assert np.abs(there.survival - here.survival).max() < 0.08
    assert ((there.low <= here.survival) & (here.survival <= there.high)).all()
