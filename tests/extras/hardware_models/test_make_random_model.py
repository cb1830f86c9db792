import json
import runpy
import sys

import pytest

from scripts import make_random_model
from scripts.make_random_model import MARK, write_random_model
from sequoia_core.decoding.loop import decode
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.plain import chain_tree
from sequoia_extras.hardware_models.model_shapes import find_shape

TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 4500,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
SMALLER = TINY | {"num_hidden_layers": 1, "vocab_size": 4600}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_written_model_loads_and_decodes(family, tmp_path):
    settings = TINY | {"model_type": family, "tie_word_embeddings": family != "llama"}
    write_random_model(settings, tmp_path / "target", dtype="float32")
    write_random_model(SMALLER, tmp_path / "draft", dtype="bfloat16")
    assert all(MARK in json.loads((tmp_path / role / "config.json").read_text()) for role in ("target", "draft"))
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), device="cpu")
    assert pair.target.vocab_size == 4500 and pair.target.eos_ids == frozenset()
    assert pair.target.parameters == find_shape(str(tmp_path / "target")).parameters
    ids = pair.tokenizer.encode("def f(x):")
    steps = decode(ids, pair, tree=chain_tree(3), max_new_tokens=6)
    assert sum(len(step.new_tokens) for step in steps) == 6


def test_a_model_that_does_not_fit_is_refused_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(make_random_model, "SPARE_BYTES", 2 * 10**12)
    with pytest.raises(ValueError, match=r"new: found .* GB free on the disk, expected at least 2,000\.0 GB"):
        write_random_model(TINY, tmp_path / "new")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="vocab_size: found 100, expected at least the 4,096 tokens"):
        write_random_model(TINY | {"vocab_size": 100}, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_script_writes_a_pair(tmp_path, monkeypatch):
    script = str(DEMO_PAIR.parents[1] / "scripts" / "make_random_model.py")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    shapes = ["--shape", str(tmp_path / "config.json"), "--draft-shape", "demo-draft"]
    monkeypatch.setattr(sys, "argv", [script, *shapes, str(tmp_path / "pair")])
    runpy.run_path(script, run_name="__main__")
    assert find_shape(str(tmp_path / "pair" / "draft")).parameters == find_shape("demo-draft").parameters
    with pytest.raises(SystemExit, match="error: .*target: found existing content"):
        runpy.run_path(script, run_name="__main__")
