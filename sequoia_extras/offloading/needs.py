"""The memory and disk space that an offloaded model needs, predicted and checked before loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sequoia_core.models.device import available_bytes

from . import layer_ring, streamed_modules
from .four_bits import common_group_size
from .packed_content import packed_layout
from .streamed_modules import StreamedModules
from .tensor_files import PIECE_BYTES

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

LARGEST_TREE = 1024  # number of nodes
LONGEST_TEXT = 2048  # number of tokens; reduced to the model's context if that is shorter
PARTS = ("resident", "ring", "cache", "scratch", "loading", "draft")


@dataclass(frozen=True, slots=True)
class OffloadNeeds:
    """The needs of an offloaded target in bytes, of device memory unless stated otherwise.

    Attributes:
        resident: embedding, head, norms and biases.
        ring: layer buffers and buffers for reads in flight.
        cache: keys and values for the longest text and the largest tree.
        scratch: working memory for a pass over the largest tree, including its logits.
        loading: the check against the model's own forward pass, which ends before the first decoding pass.
        draft: the draft model.
        host: pinned host memory; 0 unless the layers are stored there.
        copy: disk space of a packed copy of the layers; 0 if the model's own files are streamed.
    """

    resident: int
    ring: int
    cache: int
    scratch: int
    draft: int
    loading: int = 0
    host: int = 0
    copy: int = 0

    @property
    def memory(self) -> int:
        """Peak device memory in bytes."""
        return self.draft + max(self.loading, self.resident + self.ring + self.cache + self.scratch)

    def check(self, name: str, device: torch.device) -> None:
        """Raise ValueError if there is too little free memory; an unknown amount counts as enough."""
        on_host = available_bytes()
        if self.host and on_host is not None and self.host > on_host:
            raise ValueError(
                f"{name}: found {_megabytes(on_host)} MB of free host memory, expected at least "
                f"{_megabytes(self.host)} MB to store its layers there"
            )
        available = on_host if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        if available is not None and self.memory > available:
            parts = ", ".join(f"{part} {_megabytes(getattr(self, part))}" for part in PARTS)
            raise ValueError(
                f"{name}: found {_megabytes(available)} MB of free memory, expected at least "
                f"{_megabytes(self.memory)} MB to stream its layers ({parts} MB)"
            )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def _largest(config: PretrainedConfig, name: str) -> int:
    """Return a size that may vary between layers, the largest; 0 if there is none."""
    layers = getattr(config, "per_layer_config", [config])  # missing in older transformers
    return max(getattr(layer, name, None) or 0 for layer in layers)


def predict_needs(model: PreTrainedModel, streamed: StreamedModules, *, compiled: bool, draft: int) -> OffloadNeeds:
    """Compute a model's needs from its sizes; `compiled` means that compiled passes run it from a packed copy."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_size = _largest(config, "head_dim") or config.hidden_size // heads
    key_heads = _largest(config, "num_key_value_heads") or heads
    inner = _largest(config, "intermediate_size") or 4 * config.hidden_size
    positions = LARGEST_TREE + min(LONGEST_TEXT, getattr(config, "max_position_embeddings", LONGEST_TEXT))
    cache = 2 * config.num_hidden_layers * key_heads * head_size * positions * model.dtype.itemsize
    ring = streamed_modules.MODULE_SLOTS * streamed.layer_bytes + layer_ring.READERS * PIECE_BYTES
    # Upper bound: a layer's dequantized weights, and the codes and float32 values of the matrix being dequantized.
    ring += 4 * streamed.dequantized_bytes
    if compiled:
        four_bits = common_group_size(streamed.stored) or 0
        layout = packed_layout(model, four_bits=four_bits)
        widest = max(config.hidden_size, heads * head_size, inner)
        entries = 2 * config.hidden_size + (3 * heads + 2 * key_heads) * head_size + inner
        scratch = 4 * LARGEST_TREE * (entries + config.vocab_size + positions)
        if four_bits:
            scratch += 64 * torch.get_num_threads() * widest
        return OffloadNeeds(
            resident=layout.head_bytes + layout.embedding_bytes,
            ring=layer_ring.slots_for(layout.layer_count, layout.layer_bytes) * layout.layer_bytes,
            cache=cache,
            scratch=scratch,
            loading=streamed.resident_bytes + ring,
            draft=draft,
            copy=layout.file_bytes,
        )
    entries = 4 * config.hidden_size + 3 * heads * head_size + 3 * inner + heads * positions + config.vocab_size
    return OffloadNeeds(
        resident=streamed.resident_bytes,
        ring=ring,
        cache=cache,
        scratch=model.dtype.itemsize * LARGEST_TREE * entries,
        draft=draft,
        host=config.num_hidden_layers * streamed.layer_bytes if streamed.host else 0,
    )
