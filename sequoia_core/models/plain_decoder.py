"""Recognize plain decoders (Llama and its relatives), which our fused passes support."""

from operator import attrgetter
from typing import Any

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

MAX_ROTATIONS = 2**27  # limit on positions x head size; the rotary table takes 8 bytes per entry
PLAIN_DECODER_CLASSES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # types that do not depend on the text's length


def is_plain_decoder(model: Any) -> bool:
    """Return whether a model is a pre-norm decoder with rotary attention, a gated MLP and nothing else.

    Rotary angles must be fixed and their table not too large, attention must be causal without a window, the gate must
    be SiLU, and no layer may be adapted or pruned. Query, key and value may have biases (`has_biases`), and queries
    and keys may be normalized per head (`has_head_norms`).
    """
    if type(model) not in PLAIN_DECODER_CLASSES:
        return False
    config = model.config
    layers = model.model.layers
    rotation = getattr(config, "rope_parameters", None) or {}
    hidden = config.hidden_size
    inner = config.intermediate_size
    head = head_size(model)
    queries = config.num_attention_heads * head
    keys = config.num_key_value_heads * head
    window = getattr(config, "sliding_window", None)
    limited = window is not None and window < config.max_position_embeddings
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        limited = False

    def plain(part: Any, outputs: int, inputs: int, biased: bool = False) -> bool:
        weight = getattr(part, "weight", None)  # differs or is missing in adapted, pruned and quantized layers
        if type(part) is not torch.nn.Linear or weight is None or weight.shape != (outputs, inputs):
            return False
        return biased or part.bias is None

    shapes = {
        "self_attn.q_proj": (queries, hidden, True),
        "self_attn.k_proj": (keys, hidden, True),
        "self_attn.v_proj": (keys, hidden, True),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    linear = plain(model.lm_head, config.vocab_size, hidden) and all(
        plain(attrgetter(name)(layer), *shape) for layer in layers for name, shape in shapes.items()
    )
    scaled = all(layer.self_attn.scaling == head**-0.5 for layer in layers)
    return (
        len(layers) > 0
        and linear
        and scaled
        and not limited
        and config.hidden_act == "silu"
        and rotation.get("rope_type", "default") in FIXED_ROTATIONS
        and rotation.get("partial_rotary_factor", 1.0) == 1.0
        and config.max_position_embeddings * head <= MAX_ROTATIONS
    )


def head_size(model: Any) -> int:
    """Return the head dimension of a plain decoder."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def has_biases(model: Any) -> bool:
    """Return whether any query, key or value projection of a plain decoder has a bias."""
    attentions = [layer.self_attn for layer in model.model.layers]
    return any(part.bias is not None for attn in attentions for part in (attn.q_proj, attn.k_proj, attn.v_proj))


def has_head_norms(model: Any) -> bool:
    """Return whether queries and keys of a plain decoder are normalized per head, as in Qwen3."""
    return isinstance(model, Qwen3ForCausalLM)
