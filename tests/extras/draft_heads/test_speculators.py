"""Logits match those of the package `speculators`, recorded by `scripts/record_speculators_logits.py`."""

import json
from pathlib import Path
from threading import Event

import pytest
import torch

from sequoia_core.measuring.ranks_along_text import _logits_along
from sequoia_extras.draft_heads.session import HeadModel
from tests.conftest import tiny_llama
from tests.head_folders import DFLASH, PUBLISHED, SPECULATORS, head_fields, head_tensors, load_head, write_head

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
WINDOW = {"sliding_window": 1, "use_sliding_window": True}
BLOCKS = {
    "dflash": (DFLASH, {"reads": (1, 3, 5), "layers": 2}),
    "dflash-options": (
        SPECULATORS,
        {
            "speculators_model_type": "dflash", "reads": (1, 3, 5), "draft_vocab": 40, "layers": 2,
            "sample_from_anchor": True,
            "layer": {"layer_types": ["full_attention", "sliding_attention"], **WINDOW},
        },
    ),
    "dflash-window": (
        SPECULATORS,
        {
            "speculators_model_type": "dflash", "reads": (1, 3, 5), "sliding_window_non_causal": True,
            "layer": {"layer_types": ["sliding_attention"], **WINDOW},
        },
    ),
    "peagle": (SPECULATORS, {"speculators_model_type": "peagle", "draft_vocab": 40, "layers": 2, "fc_norm": True}),
}  # fmt: skip
ANCHORS = 3  # number of blocks that are compared


def written(folder, target, name):
    """Write a head with random weights; also return random states, float32 [tokens - 1, 3, H]."""
    form, fields = (FORMS | BLOCKS)[name]
    fields = head_fields(target.model, form, **{"draft_vocab": 40} | fields)
    states = torch.randn(len(TEXT) - 1, 3, 32, generator=torch.Generator().manual_seed(1))
    return write_head(folder, fields, head_tensors(fields, embeddings=True)), states


def opened(path, name):
    """Return such a head, and a session that has read the states."""
    target = tiny_llama(0, layers=8)
    folder, states = written(path, target, name)
    model = HeadModel(load_head(folder, target.model), name, target)
    session = model.open(40)
    session.observe_states(0, states)
    return model, session


@pytest.mark.parametrize("name", FORMS)
def test_logits_match_the_package(name, tmp_path):
    model, session = opened(tmp_path, name)
    found = next(_logits_along(torch.tensor(TEXT), 0, session, None, Event(), depths=DEPTHS))
    recorded = json.loads(RECORDED.read_text())["logits"][name]
    for depth, (logits, wanted) in enumerate(zip(found, recorded, strict=True)):
        rows = logits[1:] if depth == 0 else logits[-(len(TEXT) - 1 - depth) :]
        torch.testing.assert_close(rows[:, model.head.tokens[COLUMNS]], torch.tensor(wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_of_blocks_match_the_package(name, tmp_path):
    model, session = opened(tmp_path, name)
    depths = model.head.settings.block.rows
    found = next(_logits_along(torch.tensor(TEXT), 0, session, None, Event(), depths=depths))
    recorded = json.loads(RECORDED.read_text())["blocks"][name]
    assert len(recorded) == depths == 4 - (name in ("dflash", "dflash-window"))
    columns = COLUMNS if model.head.tokens is None else model.head.tokens[COLUMNS]
    first = int(name == "peagle")
    for rows, wanted in zip(found, recorded, strict=True):
        rows = rows[first : first + ANCHORS, columns]
        torch.testing.assert_close(rows, torch.tensor(wanted), rtol=1e-4, atol=1e-4)
