"""Which models are plain decoders (Llama and its relatives), which our own passes can run."""

from typing import Any

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

MAX_ROTATIONS = 2**27  # positions x head size: the table of angles takes 8 bytes for each
KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # their angles do not depend on the length of the text


def is_plain_decoder(model: Any) -> bool:
    """Whether a model is a pre-norm decoder with rotary attention and a gated MLP.

    It has nothing else: its rotation is fixed, with a table of angles that is not too large; every token sees all
    before it; the gate is SiLU's; no layer was adapted or pruned. Query, key and value may have biases (`has_biases`),
    queries and keys norms of their own (`has_head_norms`).
    """
    if type(model) not in KINDS:
        return False
    config, layers = model.config, model.model.layers
    rotation = getattr(config, "rope_parameters", None) or {}
    hidden, inner, head = config.hidden_size, config.intermediate_size, head_size(model)
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    window = getattr(config, "sliding_window", None)
    limited = window is not None and window < config.max_position_embeddings
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        limited = False

    def plain(part: Any, outputs: int, inputs: int, biased: bool = False) -> bool:
        weight = getattr(part, "weight", None)  # adapted, pruned and quantised layers differ, or have none
        if type(part) is not torch.nn.Linear or weight is None or weight.shape != (outputs, inputs):
            return False
        return biased or part.bias is None

    linear = plain(model.lm_head, config.vocab_size, hidden) and all(
        plain(layer.self_attn.q_proj, queries, hidden, biased=True)
        and plain(layer.self_attn.k_proj, keys, hidden, biased=True)
        and plain(layer.self_attn.v_proj, keys, hidden, biased=True)
        and plain(layer.self_attn.o_proj, hidden, queries)
        and plain(layer.mlp.gate_proj, inner, hidden)
        and plain(layer.mlp.up_proj, inner, hidden)
        and plain(layer.mlp.down_proj, hidden, inner)
        and layer.self_attn.scaling == head**-0.5
        for layer in layers
    )
    return (
        len(layers) > 0
        and linear
        and not limited
        and config.hidden_act == "silu"
        and rotation.get("rope_type", "default") in FIXED_ROTATIONS
        and rotation.get("partial_rotary_factor", 1.0) == 1.0
        and config.max_position_embeddings * head <= MAX_ROTATIONS
    )


def head_size(model: Any) -> int:
    """Return how many entries an attention head of a plain decoder has."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def has_biases(model: Any) -> bool:
    """Whether any query, key or value of a plain decoder has a bias."""
    attentions = [layer.self_attn for layer in model.model.layers]
    return any(part.bias is not None for own in attentions for part in (own.q_proj, own.k_proj, own.v_proj))


def has_head_norms(model: Any) -> bool:
    """Whether queries and keys of a plain decoder are normed head by head, as Qwen3's are."""
    return isinstance(model, Qwen3ForCausalLM)
