"""Record the logits that the package `speculators` computes, for tests/extras/draft_heads/test_speculators.py.

Run in the repository's root, with `speculators` installed: python -m scripts.record_speculators_logits FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from tests.conftest import tiny_llama
from tests.extras.draft_heads.test_speculators import COLUMNS, DEPTHS, FORMS, RECORDED, TEXT, written
from tests.head_folders import PUBLISHED


def record(folder: Path) -> None:
    """Save the logits of each head, given the tokens from the second on and the hidden states before them."""
    from importlib.metadata import version

    from speculators.convert.eagle.eagle3_converter import Eagle3Converter
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    target = tiny_llama(0, layers=8)
    logits = {}
    target.model.save_pretrained(folder / "target")
    for name in FORMS:
        path, states = written(folder / name, target, name)
        if FORMS[name][0] == PUBLISHED:
            path = folder / "converted"
            Eagle3Converter().convert(folder / name, path, str(folder / "target"), validate=False)
        config = Eagle3SpeculatorConfig.from_pretrained(path)
        config.transformer_layer_config._attn_implementation = "eager"
        config.speculators_config.verifier.name_or_path = str(folder / "target")
        head = Eagle3DraftModel.from_pretrained(path, config=config).float().eval()
        seen = []
        head.lm_head.register_forward_hook(lambda layer, given, rows, seen=seen: seen.append(rows[0].detach()))
        ids = torch.tensor([TEXT[1:]])
        head(states.flatten(1)[None], ids, torch.zeros_like(ids), ttt_steps=DEPTHS)
        logits[name] = [rows[: len(rows) - depth, COLUMNS].tolist() for depth, rows in enumerate(seen)]
        logits[name] = [[[round(x, 5) for x in row] for row in rows] for rows in logits[name]]
    RECORDED.write_text(json.dumps({"speculators": version("speculators"), "logits": logits}) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
