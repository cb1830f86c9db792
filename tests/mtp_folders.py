"""Random targets with MTP layers in a separate shard, in both naming schemes."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.core.test_families import LLAMA_LIKE, save

EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "head_dim": 8,
}  # fmt: skip
FORMS = {
    "Qwen3_5": ("Qwen3_5TextConfig", LLAMA_LIKE | {"head_dim": 8, "layer_types": ["full_attention"] * 2}),
    "Glm4Moe": ("Glm4MoeConfig", LLAMA_LIKE | EXPERTS | {"num_nextn_predict_layers": 1}),
}
PARTS = {
    "Qwen3_5": ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.layers.0."),
    "Glm4Moe": tuple(f"model.layers.2.{part}" for part in ("eh_proj", "enorm", "hnorm", "shared_head.norm", "")),
}


def write_target(folder, form, *, scale=6.0, change=lambda tensors: None, **own):
    """Write a target of two layers with MTP layers in its last shard, which `change` may modify; return its folder."""
    folder, (config_name, settings) = Path(folder), FORMS[form]
    settings = settings | own
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**settings, eos_token_id=None, bos_token_id=None)
    three = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    longer = getattr(transformers, config_name)(**settings | {key: three[key] for key in three if key in settings})
    models = [getattr(transformers, f"{form}ForCausalLM")(own).eval() for own in (config, longer)]
    with torch.no_grad():
        for weights in (weights for model in models for weights in model.parameters()):
            if weights.ndim > 1:
                weights.mul_(scale)
            else:
                weights.add_(0.2 * torch.randn_like(weights))
    save(models[0], folder)
    models[1].save_pretrained(folder / "longer")  # its last layer, with separate experts
    layer = "model.layers.2."
    hidden = config.hidden_size
    *parts, own = PARTS[form]
    tensors = {
        own + key.removeprefix(layer): tensor
        for key, tensor in load_file(folder / "longer" / "model.safetensors").items()
        if key.startswith(layer)
    }
    tensors[f"{parts[0]}.weight"] = torch.randn(hidden, 2 * hidden) / hidden**0.5
    tensors |= {f"{part}.weight": 1 + 0.3 * torch.randn(hidden) for part in parts[1:]}
    change(tensors)
    first = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": tensors}
    for name, held in shards.items():
        save_file(held, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, held in shards.items() for key in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)
