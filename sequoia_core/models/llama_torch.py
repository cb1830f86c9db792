"""Passes of Llama and its relatives with few PyTorch operations, because launches are slow, above all on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ..files.extras import provided
from .plain_decoder import head_size, is_plain_decoder
from .tree_cache import CacheSession

CAPACITY_STEP = 512  # compiled layers depend on the capacity of the cache, so it takes few values


class Layer(NamedTuple):
    """The weights of one decoder layer.

    Attributes:
        query_key_value: the stacked weights of the query, key and value projections; `bias` holds their biases.
        head_norms: [heads + key heads, head_dim], the weights of the norms of queries and keys, as in Qwen3.
    """

    norm: torch.Tensor
    query_key_value: torch.Tensor
    bias: torch.Tensor | None
    head_norms: torch.Tensor | None
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def run_layer(
    hidden: torch.Tensor,
    layer: Layer,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor | slice,
    mask: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Run one layer over q tokens and store their keys and values; return the hidden states, [q, hidden].

    It depends only on its arguments, so that one compilation serves all layers of a model.

    Args:
        hidden: [q, hidden].
        cos, sin: [q, 1, head_dim]; the first half of `sin` has the opposite sign.
        keys, values: [key heads, capacity, head_dim], written in place.
        slots: slots of these tokens, int64 [q] or a slice.
        mask: [1, 1, q, kv], over the first kv slots; None if the tokens see all slots up to the end of the slice.
    """
    count = len(hidden)
    key_heads, _, head_dim = keys.shape
    normed = F.rms_norm(hidden, hidden.shape[1:], layer.norm, eps)
    heads = F.linear(normed, layer.query_key_value, layer.bias).view(count, -1, head_dim)
    unturned = heads[:, :-key_heads]
    if layer.head_norms is not None:
        unturned = F.rms_norm(unturned, (head_dim,), eps=eps) * layer.head_norms
    turned = torch.addcmul(unturned * cos, unturned.roll(head_dim // 2, -1), sin)
    new_keys = turned[:, -key_heads:].transpose(0, 1)
    new_values = heads[:, -key_heads:].transpose(0, 1)
    if isinstance(slots, slice):
        keys[:, slots] = new_keys
        values[:, slots] = new_values
        seen = slots.stop
    else:
        assert mask is not None, "only the mask tells how many slots are visible"
        keys.index_copy_(1, slots, new_keys)
        values.index_copy_(1, slots, new_values)
        seen = mask.shape[-1]
    queries = turned[:, :-key_heads].transpose(0, 1)[None]
    attended = F.scaled_dot_product_attention(
        queries, keys[None, :, :seen], values[None, :, :seen], attn_mask=mask, enable_gqa=queries.shape[1] != key_heads
    )
    hidden = hidden + F.linear(attended[0].transpose(0, 1).reshape(count, -1), layer.output)
    normed = F.rms_norm(hidden, hidden.shape[1:], layer.mlp_norm, eps)
    gate, up = F.linear(normed, layer.gate_up).chunk(2, -1)
    return hidden + F.linear(F.silu(gate).mul_(up), layer.down)


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
        self.layers = [self._layer(layer) for layer in base.layers]
        compiled = (compiler(run_layer, self.embedding.device) for compiler in provided("layer_compilers"))
        self.run_static_layer = next(filter(None, compiled), run_layer)
        every = torch.arange(config.max_position_embeddings, device=self.embedding.device)[None]
        cos, sin = base.rotary_emb(self.embedding[:1], position_ids=every)
        half = self.head_dim // 2
        self.cos = cos[0]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)  # signed, so that a roll completes the rotation

    def _layer(self, layer: Any) -> Layer:
        """Fuse the weights of a transformers layer."""
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        head_norms = None
        if hasattr(attention, "q_norm"):
            norms = (attention.q_norm.weight, self.heads), (attention.k_norm.weight, self.key_heads)
            head_norms = torch.cat([weight.detach().expand(count, -1) for weight, count in norms])
        return Layer(
            layer.input_layernorm.weight,
            self._join("weight", *projections),
            None if attention.q_proj.bias is None else self._join("bias", *projections),
            head_norms,
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            self._join("weight", layer.mlp.gate_proj, layer.mlp.up_proj),
            layer.mlp.down_proj.weight,
        )

    @staticmethod
    def _join(name: str, *parts: torch.nn.Linear) -> torch.Tensor:
        """Stack the weights or biases of linear layers; theirs become views of the result."""
        joined = torch.cat([getattr(part, name).detach() for part in parts])
        for part, view in zip(parts, joined.split([part.out_features for part in parts]), strict=True):
            setattr(part, name, torch.nn.Parameter(view, requires_grad=False))
        return joined

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Return whether this backend can run a model."""
        return is_plain_decoder(model)

    @property
    def description(self) -> str:
        weights = self.embedding
        reasons = ""
        if weights.device.type == "cpu" and weights.dtype == torch.bfloat16:
            reasons = "; ".join(filter(None, (backend.why_not_here() for backend in provided("backends"))))
        return "fused PyTorch operations" + (f" ({reasons})" if reasons else "")

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> TorchLlamaSession:
        if self.run_static_layer is not run_layer:
            capacity = -(-capacity // CAPACITY_STEP) * CAPACITY_STEP
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

    def _buffers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the keys and values of each layer, [key heads, capacity, head_dim], allocated in the first pass."""
        model = self.model
        like = model.embedding.new_empty(1, model.key_heads, 0, model.head_dim)
        return (self.cache.rows(index, like, like) for index in range(len(model.layers)))

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        model = self.model
        start = self.cache.length
        slots = self.cache.slots
        # A single new token that attends to everything needs no mask.
        sees_all = slots is None and len(ids) == 1 and not tree_mask.any()
        mask = None if sees_all else self.mask(tree_mask)
        run = run_layer if slots is None else model.run_static_layer
        written = slice(start, start + len(ids)) if slots is None else slots
        positions = positions.to(self.device)
        cos = model.cos[positions][:, None]
        sin = model.sin[positions][:, None]
        hidden = F.embedding(ids.to(self.device), model.embedding)
        states = [hidden]
        for layer, (keys, values) in zip(model.layers, self._buffers(), strict=True):
            hidden = run(hidden, layer, cos, sin, keys, values, written, mask, model.eps)
            states.append(hidden)
        if self.state_indices:
            self.states = torch.stack([states[number] for number in self.state_indices], 1)
        return model.head(F.rms_norm(hidden[-keep:], hidden.shape[1:], model.norm, model.eps))
