"""A Llama forward on CPU with as few operations as PyTorch offers: small models spend most of a pass between kernels.

Knows one architecture and one device; everything else goes through the model's own forward. Where the processor
multiplies bfloat16 matrices itself (AMX), weights are kept in the layout its kernels want: a pass over 16 tokens then
costs little more than a pass over one. Shapes: q = tokens in one forward, H, K = query and key heads, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

MAX_PACKED_BYTES = 2 * 2**30  # packed weights are a copy: not for models that fill the memory
ROWS = 16  # tokens per pass that the packed layout is chosen for

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
    plain = all(
        type(part) is torch.nn.Linear for layer in layers for part in (layer.self_attn.q_proj, layer.mlp.up_proj)
    )
    return rotation == "default" and not biased and config.hidden_act == "silu" and plain and len(layers) > 0


def can_pack() -> bool:
    """Whether bfloat16 weights can be kept in the layout of the processor's matrix unit (AMX, through oneDNN)."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.cpu, "_is_amx_tile_supported")
        and torch.cpu._is_amx_tile_supported()
    )


class FusedLlama:
    """The layers of a Llama with query, key and value in one product, gate and up in another.

    In float32 the model's own weights become views of the joined ones, so nothing is held twice. In packed bfloat16 the
    copy costs as much again as the model.

    Args:
        model: one that `fits`.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        base, config = model.model, model.config
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        self.packed = model.dtype == torch.bfloat16 and can_pack() and size <= MAX_PACKED_BYTES
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = base.layers[0].self_attn.head_dim
        self.eps = config.rms_norm_eps
        self.embedding, self.norm = base.embed_tokens.weight, base.norm.weight
        self.head = self._linear([model.lm_head], join=False)
        self.layers = [
            (
                layer.input_layernorm.weight,
                self._linear([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]),
                self._linear([layer.self_attn.o_proj], join=False),
                layer.post_attention_layernorm.weight,
                self._linear([layer.mlp.gate_proj, layer.mlp.up_proj]),
                self._linear([layer.mlp.down_proj], join=False),
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

    def _linear(self, parts: list[torch.nn.Linear], *, join: bool = True) -> Linear:
        """Return x -> x W^T for the parts' weights one below the other."""
        weight = torch.cat([part.weight.detach() for part in parts]) if join else parts[0].weight.detach()
        if self.packed:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.clone() if not join else weight, ROWS)
            product = torch.ops.mkldnn._linear_pointwise
            return lambda x: product(x, packed, None, "none", [], "")
        if join:
            start = 0
            for part in parts:
                stop = start + part.out_features
                part.weight = torch.nn.Parameter(weight[start:stop], requires_grad=False)
                start = stop
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
