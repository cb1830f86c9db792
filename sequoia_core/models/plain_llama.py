"""Which models are a Llama of the plain kind, that our own passes can run."""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

MAX_ROTATIONS = 2**27  # positions x head size: the table of angles takes 8 bytes for each


def is_plain_llama(model: torch.nn.Module) -> bool:
    """Whether a model is a Llama of the plain kind on CPU.

    Default rotation with a table of angles that is not too large, no biases, gate activated by SiLU, and no layer that
    was adapted or pruned.
    """
    if type(model) is not LlamaForCausalLM or model.device.type != "cpu":
        return False
    config = model.config
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    biased = getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)
    layers = model.model.layers
    hidden, inner, head = config.hidden_size, config.intermediate_size, getattr(config, "head_dim", None)
    head = head or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head

    def plain(part: torch.nn.Module, outputs: int, inputs: int) -> bool:  # neither adapted nor pruned
        return type(part) is torch.nn.Linear and part.weight.shape == (outputs, inputs)

    linear = plain(model.lm_head, config.vocab_size, hidden) and all(
        plain(layer.self_attn.q_proj, queries, hidden)
        and plain(layer.self_attn.k_proj, keys, hidden)
        and plain(layer.self_attn.v_proj, keys, hidden)
        and plain(layer.self_attn.o_proj, hidden, queries)
        and plain(layer.mlp.gate_proj, inner, hidden)
        and plain(layer.mlp.up_proj, inner, hidden)
        and plain(layer.mlp.down_proj, hidden, inner)
        for layer in layers
    )
    small = config.max_position_embeddings * head <= MAX_ROTATIONS
    return rotation == "default" and not biased and config.hidden_act == "silu" and linear and small and len(layers) > 0
