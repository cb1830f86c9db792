"""How much memory and disk an offloaded model needs, predicted before it is loaded, and whether it is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..device import available_bytes
from . import layer_ring, streamed_modules
from .four_bits import shared_weights
from .packed_content import parts_of
from .streamed_modules import StreamedModules
from .tensor_files import PIECE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_TREE = 1024  # nodes that memory is predicted for
LONGEST_TEXT = 2048  # tokens that memory is predicted for, or the model's context if that is shorter


@dataclass(frozen=True, slots=True)
class OffloadNeeds:
    """What an offloaded target needs, in bytes; memory is the device's unless it says otherwise.

    Attributes:
        resident: embedding, head, norms and biases.
        ring: layer buffers and what is being read.
        cache: keys and values of a text of 2,048 tokens and a tree of 1,024 nodes.
        scratch: of a pass over such a tree, its logits included.
        loading: used only while the model is checked against its own forward.
        host: pinned memory of the host; 0 unless layers are kept there.
        copy: on disk, for a packed copy of the layers; 0 where the model's own files are streamed.
    """

    resident: int
    ring: int
    cache: int
    scratch: int
    loading: int
    beside: int
    host: int
    copy: int

    @property
    def memory(self) -> int:
        """The most that is used at one time."""
        return self.beside + max(self.loading, self.resident + self.ring + self.cache + self.scratch)

    def check(self, name: str, device: torch.device) -> None:
        """Refuse a device with too little memory; unknown memory counts as enough."""
        if self.host and (pinned := available_bytes()) is not None and self.host > pinned:
            raise ValueError(
                f"{name}: found {pinned / 1e6:,.0f} MB of the host's memory free, expected {self.host / 1e6:,.0f} MB "
                "to keep its layers there"
            )
        available = available_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        if available is not None and self.memory > available:
            names = ("resident", "ring", "cache", "scratch", "loading", "beside")
            parts = ", ".join(f"{name} {getattr(self, name) / 1e6:,.0f}" for name in names)
            raise ValueError(
                f"{name}: found {available / 1e6:,.0f} MB of memory free, expected {self.memory / 1e6:,.0f} MB to "
                f"stream its layers ({parts} MB)"
            )


def needs_of(model: PreTrainedModel, streamed: StreamedModules, *, compiled: bool, beside: int) -> OffloadNeeds:
    """Compute what a model needs, from its sizes; compiled passes run it from a packed copy."""
    config, width = model.config.get_text_config(), model.dtype.itemsize
    rows, slots = (
        LARGEST_TREE,
        LARGEST_TREE + min(LONGEST_TEXT, getattr(config, "max_position_embeddings", LONGEST_TEXT)),
    )
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    reading = layer_ring.READERS * PIECE
    # Weights that are computed from 4 bits: a layer's, and float32 and bytes of the matrix that is computed.
    own_ring = streamed_modules.SLOTS * streamed.layer_bytes + reading + 4 * streamed.weights_bytes
    own = streamed.resident_bytes + own_ring
    cache = 2 * config.num_hidden_layers * key_heads * size * slots * width
    if compiled:
        four_bits = shared_weights(streamed.stored) or 0
        parts = parts_of(model, four_bits=four_bits)
        expanded = 64 * torch.get_num_threads() * max(config.hidden_size, heads * size, inner) if four_bits else 0
        entries = 2 * config.hidden_size + (3 * heads + 2 * key_heads) * size + inner
        buffers = layer_ring.slots_for(parts.layer_count, parts.layer_bytes)
        return OffloadNeeds(
            resident=parts.head_bytes + parts.embedding_bytes, ring=buffers * parts.layer_bytes, cache=cache,
            scratch=4 * rows * (entries + config.vocab_size + slots) + expanded, loading=own, beside=beside, host=0,
            copy=parts.file_bytes,
        )  # fmt: skip
    entries = 4 * config.hidden_size + 3 * heads * size + 3 * inner + heads * slots + config.vocab_size
    return OffloadNeeds(
        resident=streamed.resident_bytes, ring=own_ring, cache=cache, scratch=width * rows * entries, loading=0,
        beside=beside, host=config.num_hidden_layers * streamed.layer_bytes if streamed.host else 0, copy=0,
    )  # fmt: skip
