"""The demo pair's training recipe runs from corpus to model card and gives a pair that decodes."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from sequoia_core import decode, load_pair
from sequoia_core.trees.plain import chain_tree
from tests.conftest import tokens_of
from tests.head_folders import load_head

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(monkeypatch):
    """Return a function that runs one of the scripts on a few packages and the standard library."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    recipe = importlib.import_module("train_demo_pair")
    packages = "click huggingface_hub jinja2 narwhals networkx numpy pydantic rich".split()
    for name, value in (("PACKAGES", packages), ("HELD_OUT_SHARE", 0.2), ("FLOAT32", True)):
        monkeypatch.setattr(recipe, name, value)

    def run(name: str, *options: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, "--float32", *map(str, options)])
        importlib.import_module(name).main()

    return run


@pytest.mark.slow
def test_smoke_training_gives_a_working_pair(script, tmp_path):
    out = tmp_path / "demo"
    script("train_demo_pair", "--smoke", "--work", tmp_path, "--out", out)
    facts = json.loads((out / "training.json").read_text())
    assert facts["train_files"] > facts["held_out_files"] > 0
    assert facts["target_held_out_loss"] < 6.3  # ln 512 = 6.24 is a uniform guess; untrained models start above
    files = json.loads((tmp_path / "files.json").read_text())
    assert not set(files["train"]) & set(files["held_out"])
    pair = load_pair(out / "target", out / "draft", "cpu")
    steps = decode(pair.tokenizer.encode("import"), pair, tree=chain_tree(2), max_new_tokens=8)
    assert len(tokens_of(steps)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", [["--vocabulary", 512], ["--block", 4]], ids=["EAGLE-3", "DFlash"])
def test_head_training_runs_and_resumes(kind, script, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.import_module("train_head"), "LENGTH", 96)  # tokens of a text
    target = ROOT / "assets" / "demo" / "target"
    options = ["--target", target, "--out", tmp_path / "head", "--inner", 64, *kind]
    for steps in (1, 2):
        script("train_head", *options, "--files", 2, "--rows", 8, "--batch", 512, "--steps", steps)
        said = capsys.readouterr().out
        assert ("generated" in said) == (steps == 1)
    assert "step 0 " not in said
    facts = json.loads((tmp_path / "head" / "training.json").read_text())
    head = load_head(tmp_path / "head", LlamaForCausalLM.from_pretrained(target))
    assert facts["steps"] == 2 and len(facts["accepted"]) == 3 and min(facts["accepted"]) > 0
    if head.settings.block is None:
        assert facts["accepted"][2] < facts["accepted"][0] < 1
        assert len(head.tokens) == 512 and head.tokens.diff().min() > 0
