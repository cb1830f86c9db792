"""Draft heads with random weights, written as the files of each form."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from sequoia_core.models.heads.eagle3 import Eagle3Head
from sequoia_core.models.heads.head_config import head_settings

PUBLISHED, SPECULATORS = "published", "speculators"


def head_fields(target, form=PUBLISHED, *, draft_vocab=None, reads=None, layers=1, **fields):
    """Return the config.json of a head for a target's configuration; fields may change or add some."""
    config = target.config
    own = {
        "model_type": "llama", "hidden_size": config.hidden_size, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": layers, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
        "vocab_size": config.vocab_size, "rope_theta": 10_000.0, "architectures": ["LlamaForCausalLMEagle3"],
    }  # fmt: skip
    draft_vocab, layers = draft_vocab or config.vocab_size, config.num_hidden_layers
    if form == PUBLISHED:
        if reads is not None:
            own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [number - 1 for number in reads]}
        return own | {"draft_vocab_size": draft_vocab} | fields
    return {
        "speculators_model_type": "eagle3", "speculators_version": "0.3.0", "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": {**own, "architectures": None}, "draft_vocab_size": draft_vocab,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(reads or (2, layers // 2, layers - 3)),
        "speculators_config": {"algorithm": "eagle3"},
    } | fields  # fmt: skip


def head_tensors(fields, *, seed=0, scale=1.0, embeddings=False):
    """Return a random head's tensors by the names of its form."""
    generator = torch.Generator().manual_seed(seed)
    settings = head_settings(fields)
    shape = torch.empty(settings.vocab, settings.hidden)
    with torch.device("meta"):
        head = Eagle3Head(settings, None if embeddings else shape)
    tensors = {}
    for name, empty in head.state_dict().items():
        drawn = torch.randn(empty.shape, generator=generator)
        tensors[name] = 1 + 0.1 * drawn if empty.dim() == 1 else scale * drawn / empty.shape[1] ** 0.5
    if "transformer_layer_config" not in fields:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    if settings.draft_vocab < settings.vocab:
        kept = torch.randperm(settings.vocab, generator=generator)[: settings.draft_vocab].sort().values
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(settings.vocab, dtype=torch.bool)
        tensors["t2d"][kept] = True
    return tensors


def write_head(folder, fields, tensors, *, pickled=False):
    """Write a head's folder and return it."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(fields))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
