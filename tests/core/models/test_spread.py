"""Models that accelerate spreads over several devices: the same text."""

import pytest

from sequoia_core.decoding.loop import decode
from sequoia_core.models import checkpoint
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import tokens_of

pytest.importorskip("accelerate")
PROMPT = "def read_lines(path):\n"


def text(pair) -> list[int]:
    steps = decode(pair.tokenizer.encode(PROMPT), pair, tree=k_ary_tree(2, 3), max_new_tokens=32)
    return tokens_of(steps)


@pytest.mark.slow
def test_a_target_partly_on_disk_writes_the_same_text(monkeypatch):
    whole = load_pair(dtype="float32")
    layers = whole.target.model.config.num_hidden_layers
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{n}": "cpu" if n < 2 else "disk" for n in range(layers)}
    monkeypatch.setattr(checkpoint, "SPREAD", places)
    monkeypatch.setattr("sequoia_core.models.folders.SPREAD", "auto")
    spread = load_pair(device="auto", dtype="float32")
    assert spread.target.backend == "transformers" and spread.target.model.model.layers[3].mlp.up_proj.weight.is_meta
    assert text(spread) == text(whole)
