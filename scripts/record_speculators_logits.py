"""Record the logits that the package `speculators` computes, for tests/extras/draft_heads/test_speculators.py.

Run in the repository's root, with `speculators` installed: python -m scripts.record_speculators_logits FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from tests.conftest import tiny_llama
from tests.extras.draft_heads.test_speculators import (
    ANCHORS,
    BLOCKS,
    COLUMNS,
    DEPTHS,
    FORMS,
    RECORDED,
    TEXT,
    written,
)
from tests.head_folders import DFLASH, PUBLISHED


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
    blocks = {name: record_blocks(folder, target, name) for name in BLOCKS}
    content = {"speculators": version("speculators"), "logits": logits, "blocks": blocks}
    RECORDED.write_text(json.dumps(content) + "\n")


def record_blocks(folder: Path, target, name: str) -> list:
    """Return the logits of blocks below the first anchors, by depth, anchor and column."""
    from speculators.convert.dflash.converter import DFlashConverter
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
    from speculators.models.peagle import core as peagle

    path, states = written(folder / name, target, name)
    if BLOCKS[name][0] == DFLASH:
        path = folder / "converted-block"
        DFlashConverter().convert(folder / name, path, str(folder / "target"), validate=False)
    is_peagle = name == "peagle"
    model_class, config_class = (
        (PEagleDraftModel, PEagleSpeculatorConfig) if is_peagle else (DFlashDraftModel, DFlashSpeculatorConfig)
    )
    config = config_class.from_pretrained(path)
    config.transformer_layer_config._attn_implementation = "eager"
    config.speculators_config.verifier.name_or_path = str(folder / "target")
    head = model_class.from_pretrained(path, config=config).float().eval()
    if not is_peagle:
        head.load_verifier_weights()
    seen = []
    head.lm_head.register_forward_hook(lambda layer, given, rows: seen.append(rows[0].detach()))
    size = 4
    # P-EAGLE's training data pair each token with the states before it, DFlash's with its own. The package trains no
    # block that ends after the text, so the text is extended.
    ids = F.pad(torch.tensor([TEXT[1:] if is_peagle else TEXT[:-1]]), (0, size))
    states = F.pad(states, (0, 0, 0, 0, 0, size))
    count = ids.shape[1]
    if is_peagle:
        # Train all depths of the first anchors instead of a random sample.
        anchors = torch.cat([torch.arange(count), torch.arange(ANCHORS).repeat(size - 1)])
        depths = torch.cat([torch.zeros(count, dtype=torch.int64), torch.arange(1, size).repeat_interleave(ANCHORS)])
        peagle.generate_cod_sample_indices = lambda **_: (anchors, depths)
    head(
        hidden_states=states.flatten(1)[None],
        input_ids=ids,
        document_ids=torch.zeros_like(ids),
        loss_mask=(torch.arange(count) < ANCHORS)[None].long(),
        verifier_last_hidden_states=states[None, :, 0],
        loss_config=resolve_loss_config("ce", "eager"),
        max_anchors=ANCHORS,
    )
    (rows,) = seen
    if is_peagle:
        rows = torch.cat([rows[:ANCHORS], rows[count:]]).unflatten(0, (size, ANCHORS))
    else:
        rows = rows.unflatten(0, (ANCHORS, size)).transpose(0, 1)[0 if config.sample_from_anchor else 1 :]
    return [[[round(x, 5) for x in row] for row in depth] for depth in rows[:, :, COLUMNS].tolist()]


if __name__ == "__main__":
    record(Path(sys.argv[1]))
