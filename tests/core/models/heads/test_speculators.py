"""Logits are those of the package `speculators` for the same files at each depth; this file records them there."""

import json
import sys
from pathlib import Path
from threading import Event

import pytest
import torch

from sequoia_core.models.heads.session import HeadModel
from sequoia_core.studies.ranks_along_text import _logits_along
from tests.conftest import tiny_llama
from tests.head_folders import PUBLISHED, SPECULATORS, head_fields, head_tensors, load_head, write_head

RECORDED = Path(__file__).with_name("speculators_logits.json")
TEXT, DEPTHS, COLUMNS = [3, 14, 15, 9, 26, 53, 58], 3, [0, 13, 26, 39]
FORMS = {
    "published": (PUBLISHED, {}),
    "speculators": (SPECULATORS, {}),
    "options": (SPECULATORS, {"norm_before_residual": True, "fc_norm": True, "norm_output": True, "layers": 2}),
    "qwen3": (SPECULATORS, {"norm_before_fc": True, "layer": {"model_type": "qwen3", "head_dim": 16}}),
}


def written(folder, target, name):
    """Write one of the heads, of random weights; its states are random too, float32 [tokens - 1, 3, H]."""
    form, fields = FORMS[name]
    fields = head_fields(target.model, form, draft_vocab=40, **fields)
    states = torch.randn(len(TEXT) - 1, 3, 32, generator=torch.Generator().manual_seed(1))
    return write_head(folder, fields, head_tensors(fields, embeddings=True)), states


@pytest.mark.parametrize("name", FORMS)
def test_logits_are_those_of_the_package(name, tmp_path):
    target = tiny_llama(0, layers=8)
    folder, states = written(tmp_path, target, name)
    model = HeadModel(load_head(folder, target.model), name, target)
    session = model.open(40)
    session.see(0, states)
    found = next(_logits_along(torch.tensor(TEXT), 0, session, None, Event(), depths=DEPTHS))
    recorded = json.loads(RECORDED.read_text())["logits"][name]
    for depth, (logits, wanted) in enumerate(zip(found, recorded, strict=True)):
        rows = logits[1:] if depth == 0 else logits[-(len(TEXT) - 1 - depth) :]
        torch.testing.assert_close(rows[:, model.head.tokens[COLUMNS]], torch.tensor(wanted), rtol=1e-4, atol=1e-4)


def record(folder: Path) -> None:
    """Write what the package says of each head, given tokens from the second on beside the states before them."""
    from importlib.metadata import version

    from speculators.convert.eagle.eagle3_converter import Eagle3Converter
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    target, logits = tiny_llama(0, layers=8), {}
    target.model.save_pretrained(folder / "target")
    for name in FORMS:
        path, states = written(folder / name, target, name)
        if FORMS[name][0] == PUBLISHED:
            path = folder / "converted"
            Eagle3Converter().convert(folder / name, path, str(folder / "target"), validate=False)
        config = Eagle3SpeculatorConfig.from_pretrained(path)
        config.transformer_layer_config._attn_implementation = "eager"
        config.speculators_config.verifier.name_or_path = str(folder / "target")
        head, seen = Eagle3DraftModel.from_pretrained(path, config=config).float().eval(), []
        head.lm_head.register_forward_hook(lambda layer, given, rows, seen=seen: seen.append(rows[0].detach()))
        ids = torch.tensor([TEXT[1:]])
        head(states.flatten(1)[None], ids, torch.zeros_like(ids), ttt_steps=DEPTHS)
        logits[name] = [rows[: len(rows) - depth, COLUMNS].tolist() for depth, rows in enumerate(seen)]
        logits[name] = [[[round(x, 5) for x in row] for row in rows] for rows in logits[name]]
    RECORDED.write_text(json.dumps({"speculators": version("speculators"), "logits": logits}) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
