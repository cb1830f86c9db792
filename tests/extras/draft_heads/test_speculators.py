"""Logits match those of the package `speculators`, recorded by `scripts/record_speculators_logits.py`."""

import json
from pathlib import Path
from threading import Event

import pytest
import torch

from sequoia_core.measuring.ranks_along_text import _logits_along
from sequoia_extras.draft_heads.session import HeadModel
from tests.conftest import tiny_llama
from tests.head_folders import PUBLISHED, SPECULATORS, head_fields, head_tensors, load_head, write_head

RECORDED = Path(__file__).with_name("speculators_logits.json")
TEXT = [3, 14, 15, 9, 26, 53, 58]
DEPTHS = 3
COLUMNS = [0, 13, 26, 39]
FORMS = {
    "published": (PUBLISHED, {}),
    "speculators": (SPECULATORS, {}),
    "options": (SPECULATORS, {"norm_before_residual": True, "fc_norm": True, "norm_output": True, "layers": 2}),
    "qwen3": (SPECULATORS, {"norm_before_fc": True, "layer": {"model_type": "qwen3", "head_dim": 16}}),
}


def written(folder, target, name):
    """Write a head with random weights; also return random states, float32 [tokens - 1, 3, H]."""
    form, fields = FORMS[name]
    fields = head_fields(target.model, form, draft_vocab=40, **fields)
    states = torch.randn(len(TEXT) - 1, 3, 32, generator=torch.Generator().manual_seed(1))
    return write_head(folder, fields, head_tensors(fields, embeddings=True)), states


@pytest.mark.parametrize("name", FORMS)
def test_logits_match_the_package(name, tmp_path):
    target = tiny_llama(0, layers=8)
    folder, states = written(tmp_path, target, name)
    model = HeadModel(load_head(folder, target.model), name, target)
    session = model.open(40)
    session.observe_states(0, states)
    found = next(_logits_along(torch.tensor(TEXT), 0, session, None, Event(), depths=DEPTHS))
    recorded = json.loads(RECORDED.read_text())["logits"][name]
    for depth, (logits, wanted) in enumerate(zip(found, recorded, strict=True)):
        rows = logits[1:] if depth == 0 else logits[-(len(TEXT) - 1 - depth) :]
        torch.testing.assert_close(rows[:, model.head.tokens[COLUMNS]], torch.tensor(wanted), rtol=1e-4, atol=1e-4)
