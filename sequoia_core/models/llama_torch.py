"""A Llama pass with few PyTorch operations, because launch overhead is large for small models and on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ..files.extras import provided
from .plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder
from .tree_cache import CacheSession

Linear = Callable[[torch.Tensor], torch.Tensor]


class Layer(NamedTuple):
    """One decoder layer: the weights of its two norms, and its linear layers."""

    norm: torch.Tensor
    query_key_value: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchLlama:
    """Llama layers with fused query, key and value projections, and fused gate and up projections.

    The model's weights become views of the fused ones, so no weight is stored twice.

    Args:
        model: a model that `supports` accepts.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        base = model.model
        config = model.config
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.head_dim = head_size(model)
        self.eps = config.rms_norm_eps
        self.embedding = base.embed_tokens.weight
        self.norm = base.norm.weight
        self.head = model.lm_head
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
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)  # signed, so that a roll completes the rotation

    @staticmethod
    def _joined(*parts: torch.nn.Linear) -> Linear:
        """Return one linear layer with the parts' stacked weights."""
        weight = torch.cat([part.weight.detach() for part in parts])
        start = 0
        for part in parts:
            part.weight = torch.nn.Parameter(weight[start : start + part.out_features], requires_grad=False)
            start += part.out_features
        joined = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        joined.weight = torch.nn.Parameter(weight, requires_grad=False)
        return joined

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Return whether this backend can run a model."""
        return is_plain_decoder(model) and not has_biases(model) and not has_head_norms(model)

    @property
    def description(self) -> str:
        weights = self.embedding
        reasons = ""
        if weights.device.type == "cpu" and weights.dtype == torch.bfloat16:
            reasons = "; ".join(filter(None, (backend.why_not_here() for backend in provided("backends"))))
        return "fused PyTorch operations" + (f" ({reasons})" if reasons else "")

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> TorchLlamaSession:
        return TorchLlamaSession(self, capacity, vocab_size, state_indices)


class TorchLlamaSession(CacheSession):
    """One sequence in a `TorchLlama`."""

    def __init__(self, model: TorchLlama, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> None:
        super().__init__(
            len(model.layers),
            capacity,
            device=model.embedding.device,
            dtype=model.embedding.dtype,
            vocab_size=vocab_size,
            state_indices=state_indices,
        )
        self.model = model
        self.any_slot = True

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        model = self.model
        # A single new token that attends to everything needs no mask.
        sees_all = self.cache.slots is None and len(ids) == 1 and not tree_mask.any()
        mask = None if sees_all else self.mask(tree_mask)
        count = len(ids)
        hidden_size = model.embedding.shape[1]
        rotated = model.heads + model.key_heads
        grouped = model.heads != model.key_heads
        ids = ids.to(self.device)
        positions = positions.to(self.device)
        cos = model.cos[positions][:, None]
        sin = model.sin[positions][:, None]
        half = model.head_dim // 2
        shape = (hidden_size,)
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
        if self.state_indices:
            self.states = torch.stack([states[number] for number in self.state_indices], 1)
        return model.head(F.rms_norm(hidden[-keep:], shape, model.norm, model.eps))
