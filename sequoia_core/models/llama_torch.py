"""A Llama pass in few PyTorch operations, because small models and GPUs spend much of a pass between kernels.

Knows one architecture; bfloat16 on a CPU goes through `llama_x86` where it can, other kinds of model through their own
forward. Shapes: q = tokens in one pass, H, K = query and key heads, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ..native import linear, llama_x86
from ..native.plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder
from .tree_cache import CacheSession

Linear = Callable[[torch.Tensor], torch.Tensor]


class Layer(NamedTuple):
    """One decoder layer: the weights of its two norms, and its products."""

    norm: torch.Tensor
    query_key_value: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchLlama:
    """The layers of a Llama with query, key and value in one product, gate and up in another.

    The model's own weights become views of the joined ones, so nothing is held twice.

    Args:
        model: one that `supports` accepts.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        base, config = model.model, model.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = head_size(model)
        self.eps = config.rms_norm_eps
        self.embedding, self.norm = base.embed_tokens.weight, base.norm.weight
        self.head, self.logits_dtype = model.lm_head, linear.logits_dtype(model)
        self.layers = [
            Layer(
                layer.input_layernorm.weight,
                self._joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                layer.self_attn.o_proj,
                layer.post_attention_layernorm.weight,
                self._joined(layer.mlp.gate_proj, layer.mlp.up_proj),
                layer.mlp.down_proj,
            )
            for layer in base.layers
        ]
        every = torch.arange(config.max_position_embeddings, device=self.embedding.device)[None]
        cos, sin = base.rotary_emb(self.embedding[:1], position_ids=every)
        half = self.head_dim // 2
        self.cos = cos[0]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)  # signed, so that a roll rotates

    @staticmethod
    def _joined(*parts: torch.nn.Linear) -> Linear:
        """Return x -> x W^T for the parts' weights one below the other."""
        weight, start = torch.cat([part.weight.detach() for part in parts]), 0
        for part in parts:
            part.weight = torch.nn.Parameter(weight[start : start + part.out_features], requires_grad=False)
            start += part.out_features
        joined = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        joined.weight = torch.nn.Parameter(weight, requires_grad=False)
        if isinstance(parts[0], linear.CompiledLinear):
            linear.compile_layers(joined)
        return joined

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Whether this path can run a model."""
        return is_plain_decoder(model) and not has_biases(model) and not has_head_norms(model)

    @property
    def description(self) -> str:
        on_cpu = self.embedding.device.type == "cpu"
        reason = llama_x86.compiled()[1] if on_cpu and self.embedding.dtype == torch.bfloat16 else ""
        compiled = linear.description(self.head)
        return "fused PyTorch operations" + (f" ({reason})" if reason else f", {compiled}" if compiled else "")

    def open(self, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> TorchLlamaSession:
        return TorchLlamaSession(self, capacity, vocab_size, states)


class TorchLlamaSession(CacheSession):
    """One sequence in a `TorchLlama`."""

    def __init__(self, model: TorchLlama, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> None:
        super().__init__(
            len(model.layers), capacity, device=model.embedding.device, dtype=model.embedding.dtype,
            logits_dtype=model.logits_dtype, vocab_size=vocab_size, reads=states,
        )  # fmt: skip
        self.model, self.any_slot = model, not states

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        model = self.model
        # one new token that sees everything
        sees_all = self.cache.slots is None and len(ids) == 1 and not tree_mask.any()
        mask = None if sees_all else self.mask(tree_mask)
        count, hidden_size = len(ids), model.embedding.shape[1]
        rotated, grouped = model.heads + model.key_heads, model.heads != model.key_heads
        ids, positions = ids.to(self.device), positions.to(self.device)
        cos, sin = model.cos[positions][:, None], model.sin[positions][:, None]
        half, shape = model.head_dim // 2, (hidden_size,)
        hidden = F.embedding(ids, model.embedding)
        states = [hidden]
        for index, layer in enumerate(model.layers):
            normed = F.rms_norm(hidden, shape, layer.norm, model.eps)
            heads = layer.query_key_value(normed).view(count, -1, model.head_dim)
            turned = heads[:, :rotated]
            turned = torch.addcmul(turned * cos, turned.roll(half, -1), sin)
            keys, values = self.cache.write(
                index, turned[:, model.heads :].transpose(0, 1)[None], heads[:, rotated:].transpose(0, 1)[None]
            )
            attended = F.scaled_dot_product_attention(
                turned[:, : model.heads].transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=grouped
            )
            hidden = hidden + layer.output(attended[0].transpose(0, 1).reshape(count, -1))
            gate, up = layer.gate_up(F.rms_norm(hidden, shape, layer.mlp_norm, model.eps)).chunk(2, -1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
            states.append(hidden)
        if self.reads:
            self.states = torch.stack([states[number] for number in self.reads], 1)
        return model.head(F.rms_norm(hidden[-keep:], shape, model.norm, model.eps))
