"""A Llama forward on CPU with as few operations as PyTorch offers: small models spend most of a pass between kernels.

Knows one architecture and one device; everything else goes through the model's own forward (and bfloat16 on processors
with AMX through `amx_llama`). Shapes: q = tokens in one forward, H, K = query and key heads, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

MAX_ROTATIONS = 2**27  # positions x head size: the table of angles takes 8 bytes for each
Linear = Callable[[torch.Tensor], torch.Tensor]


class KeyValueCache(Protocol):
    """Where a forward leaves keys and values and finds those of earlier tokens."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [1, K, q, head_dim] each; return views [1, K, kv, head_dim] of all so far."""
        ...


def fits(model: torch.nn.Module) -> bool:
    """Whether a model is a Llama of the plain kind on CPU: default rotation, no biases, gate activated by SiLU."""
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


class FusedLlama:
    """The layers of a Llama with query, key and value in one product, gate and up in another.

    The model's own weights become views of the joined ones, so nothing is held twice.

    Args:
        model: one that `fits`.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        base, config = model.model, model.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = base.layers[0].self_attn.head_dim
        self.eps = config.rms_norm_eps
        self.embedding, self.norm = base.embed_tokens.weight, base.norm.weight
        self.head = model.lm_head
        self.layers = [
            (
                layer.input_layernorm.weight,
                self._joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                layer.self_attn.o_proj,
                layer.post_attention_layernorm.weight,
                self._joined(layer.mlp.gate_proj, layer.mlp.up_proj),
                layer.mlp.down_proj,
            )
            for layer in base.layers
        ]
        every = torch.arange(config.max_position_embeddings)[None]
        cos, sin = base.rotary_emb(self.embedding[:1], position_ids=every)
        half = self.head_dim // 2
        self.cos = cos[0]
        self.sin = torch.cat(
            [-sin[0, :, :half], sin[0, :, half:]], -1
        )  # signed, so that a roll stands for the rotation

    @staticmethod
    def _joined(*parts: torch.nn.Linear) -> Linear:
        """Return x -> x W^T for the parts' weights one below the other."""
        weight, start = torch.cat([part.weight.detach() for part in parts]), 0
        for part in parts:
            part.weight = torch.nn.Parameter(weight[start : start + part.out_features], requires_grad=False)
            start += part.out_features
        return lambda x: F.linear(x, weight)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: KeyValueCache, keep: int
    ) -> torch.Tensor:
        """Append tokens to the cache and return logits.

        Args:
            ids, positions: int64 [q].
            mask: [1, 1, q, kv] of the model's dtype, added to the scores; None where everything is visible.
            keep: how many of the last rows of logits are wanted.

        Returns:
            [keep, V] of the model's dtype.
        """
        count, hidden_size = len(ids), self.embedding.shape[1]
        rotated, grouped = self.heads + self.key_heads, self.heads != self.key_heads
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        half, shape = self.head_dim // 2, (hidden_size,)
        hidden = F.embedding(ids, self.embedding)
        for index, (norm, project, output, mlp_norm, gate_up, down) in enumerate(self.layers):
            heads = project(F.rms_norm(hidden, shape, norm, self.eps)).view(count, -1, self.head_dim)
            turned = heads[:, :rotated]
            turned = torch.addcmul(turned * cos, turned.roll(half, -1), sin)
            keys, values = cache.write(
                index, turned[:, self.heads :].transpose(0, 1)[None], heads[:, rotated:].transpose(0, 1)[None]
            )
            attended = F.scaled_dot_product_attention(
                turned[:, : self.heads].transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=grouped
            )
            hidden = hidden + output(attended[0].transpose(0, 1).reshape(count, -1))
            gate, up = gate_up(F.rms_norm(hidden, shape, mlp_norm, self.eps)).chunk(2, -1)
            hidden = hidden + down(F.silu(gate).mul_(up))
        return self.head(F.rms_norm(hidden[-keep:], shape, self.norm, self.eps))
