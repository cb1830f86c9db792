"""Language models behind one small protocol, and their KV cache.

Knows Hugging Face models and how to drive their own forward with a tree mask; knows nothing of files, trees, sampling
or verification. Shapes: q = tokens in one forward, kv = cached tokens including those q, V = vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from . import llama_amx as amx_llama
from .llama_amx import DraftLevel, NativeCache, NativeDraft, NativeLlama
from .llama_torch import FusedLlama, fits

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


class LanguageModel(Protocol):
    """What the engine needs of a model; tests implement it with a table of logits."""

    name: str
    vocab_size: int
    max_context: int
    eos_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype

    def new_cache(self, capacity: int) -> TreeCache:
        """Return an empty cache with room for `capacity` tokens."""
        ...

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, *, cache: TreeCache, tail: torch.Tensor, keep: int
    ) -> torch.Tensor:
        """Append tokens to the cache and return logits.

        Args:
            token_ids, positions: int64 [q].
            cache: receives q new slots.
            tail: float32 [q, t], additive mask (0 or -inf) over the last t slots, the new ones included; every slot
                before them is visible.
            keep: how many of the last rows of logits are wanted.

        Returns:
            float [keep, V].
        """
        ...


class _Layer(CacheLayerMixin):
    """One layer's view into the cache's buffer."""

    def __init__(self, cache: TreeCache, index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states, value_states) -> None:  # allocated by TreeCache on the first update
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        return self.cache.write(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + self.cache.pending, 0

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_max_length(self) -> int:
        return self.cache.capacity


class TreeCache(Cache):
    """A KV cache allocated once, whose slots can be kept selectively: a tree goes in, its accepted path stays.

    All layers live in one tensor [2 * layers, heads, capacity, head_dim], so that committing a path is one gather.
    """

    def __init__(self, layer_count: int, capacity: int) -> None:
        super().__init__(layers=[_Layer(self, i) for i in range(layer_count)])
        self.capacity = capacity
        self.length = 0
        self.pending = 0
        self.positions = torch.zeros(capacity, dtype=torch.int64)
        self._buffer: torch.Tensor | None = None

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def begin(self, positions: torch.Tensor) -> None:
        """Announce a forward over q tokens at these positions, int64 [q]."""
        self.pending = len(positions)
        if self.length + self.pending > self.capacity:
            raise ValueError(
                f"cache: found {self.length} + {self.pending} tokens, expected at most {self.capacity} slots"
            )
        self.positions[self.length : self.length + self.pending] = positions

    def end(self) -> None:
        """Make the announced tokens part of the cache."""
        self.length += self.pending
        self.pending = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values [1, heads, q, head_dim]; return views [1, heads, kv, head_dim] of all so far."""
        if self._buffer is None:
            _, heads, _, width = keys.shape
            self._buffer = torch.zeros(
                2 * len(self.layers), heads, self.capacity, width, dtype=keys.dtype, device=keys.device
            )
        stop = self.length + keys.shape[2]
        pair = self._buffer[2 * layer : 2 * layer + 2]
        if keys.shape[1:2] + keys.shape[3:] != pair.shape[1:2] + pair.shape[3:] or keys.shape != values.shape:
            raise ValueError(
                f"layer {layer}: found keys {tuple(keys.shape)} and values {tuple(values.shape)}, "
                "expected all layers alike"
            )
        pair[0, :, self.length : stop] = keys[0]
        pair[1, :, self.length : stop] = values[0]
        return pair[0:1, :, :stop], pair[1:2, :, :stop]

    def keep(self, start: int, slots: list[int]) -> None:
        """Keep of the slots from `start` on only `start + slots[i]`, moved to `start + i`; forget the rest.

        Only slots that really move are copied; `slots` must increase.
        """
        moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved < len(slots):
            source = torch.tensor(slots[moved:]) + start
            stop = start + len(slots)
            self.positions[start + moved : stop] = self.positions[source]
            if self._buffer is not None:
                self._buffer[:, :, start + moved : stop] = self._buffer.index_select(2, source.to(self._buffer.device))
        self.length = start + len(slots)


class HuggingFaceModel:
    """Any `AutoModelForCausalLM`, driven through its own forward with explicit positions and a 4-D mask.

    Args:
        vocab_size: V, how many of the model's first rows of logits are real tokens; None takes all. Rows after them
            are padding: they are cut off before any softmax, so the model's distribution is its own given that the
            token is below V.

    Raises:
        ValueError: for a `vocab_size` beyond the model's rows, or layers that cannot attend along a tree.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        eos_ids: frozenset[int] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.name = name
        config = model.config.get_text_config()
        rows = int(config.vocab_size)
        self.vocab_size = rows if vocab_size is None else vocab_size
        if not 1 <= self.vocab_size <= rows:
            raise ValueError(
                f"{name}: found a vocabulary of {self.vocab_size}, expected 1 to its {rows} rows of logits"
            )
        self.max_context = _context(config)
        self.eos_ids = _eos_ids(model, name) if eos_ids is None else eos_ids
        self.device, self.dtype = model.device, model.dtype
        self.parameters = sum(p.numel() for p in model.parameters())
        self._layer_count = int(config.num_hidden_layers)
        kinds = list(getattr(config, "layer_types", None) or [])
        self._window = getattr(config, "sliding_window", None)
        if self._window is not None and not getattr(config, "use_sliding_window", True):
            self._window = None
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise ValueError(
                f"{name}: found layers of kind {', '.join(sorted(unknown))}, expected full or sliding-window attention "
                "(a tree needs a mask over cached tokens)"
            )
        self._kinds = kinds if self._window is not None else []
        plain = fits(model)
        self._native = NativeLlama(model) if plain and NativeLlama.takes(model) else None
        self._fused = FusedLlama(model) if plain and self._native is None else None

    @property
    def forward_by(self) -> str:
        """What runs the passes, in words: compiled code, PyTorch operations of ours, or transformers."""
        if self._native is not None:
            return "compiled code for AMX"
        if self._fused is None:
            return "transformers"
        reason = amx_llama.missing() if self.dtype == torch.bfloat16 else ""
        return f"fused PyTorch operations ({reason})" if reason else "fused PyTorch operations"

    def endless(self) -> HuggingFaceModel:
        """Return this model, weights shared, with no end of text: for races in which all must write equally much."""
        twin = copy.copy(self)
        twin.eos_ids = frozenset()
        return twin

    def new_cache(self, capacity: int) -> TreeCache | NativeCache:
        return TreeCache(self._layer_count, capacity) if self._native is None else NativeCache(self._native, capacity)

    def plan_draft(self, levels: Sequence[DraftLevel], *, fill: str) -> NativeDraft | None:
        """Return what drafts trees of this shape in one call, or None where each level needs a forward of its own.

        Args:
            fill: how children are drawn, see `NativeDraft`.
        """
        if self._native is None or not levels:
            return None
        return NativeDraft(self._native, levels, size=self.vocab_size, fill=fill)

    def _mask(self, cache: TreeCache, tail: torch.Tensor, *, windowed: bool) -> torch.Tensor:
        queries, spec = tail.shape
        total = cache.length + queries
        mask = torch.zeros(1, 1, queries, total, dtype=self.dtype)
        mask[0, 0, :, total - spec :] = tail
        if windowed:
            keys = cache.positions[:total]
            too_old = keys[None, :] <= keys[cache.length :, None] - self._window
            mask[0, 0].masked_fill_(too_old, -torch.inf)
        return mask.to(self.device)

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, *, cache: TreeCache, tail: torch.Tensor, keep: int
    ) -> torch.Tensor:
        if self._native is not None:
            return self._native.forward(token_ids, positions, tail, cache, keep)[:, : self.vocab_size]
        cache.begin(positions)
        if self._fused is not None:
            sees_all = len(token_ids) == 1 and not tail.any()  # one new token and nothing hidden from it
            mask = None if sees_all else self._mask(cache, tail, windowed=False)
            logits = self._fused.forward(token_ids, positions, mask, cache, keep)
            cache.end()
            return logits[:, : self.vocab_size]
        if set(self._kinds) == {"full_attention", "sliding_attention"}:  # such models take one mask per kind of layer
            mask = {
                "full_attention": self._mask(cache, tail, windowed=False),
                "sliding_attention": self._mask(cache, tail, windowed=True),
            }
        else:
            mask = self._mask(cache, tail, windowed=self._window is not None and "full_attention" not in self._kinds)
        ids, places = token_ids[None].to(self.device), positions[None].to(self.device)
        logits = self.model(
            input_ids=ids, position_ids=places, attention_mask=mask, past_key_values=cache, use_cache=True,
            logits_to_keep=keep,
        ).logits  # fmt: skip
        cache.end()
        return logits[0, -keep:, : self.vocab_size]


def _context(config: PretrainedConfig) -> int:
    """Return how many positions a model has for which the rotation of its cached keys stays what it was.

    Two kinds of rotary embedding depend on the length of the text (transformers' `dynamic_rope_update`): "longrope"
    turns to other frequencies beyond the length it was first trained for, "dynamic" beyond its positions. Keys cached
    before that would be rotated by the old ones, so such a context ends there.
    """
    context = getattr(config, "max_position_embeddings", None) or 2048
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one for all layers, or per kind
    short = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return int(min([context, *(length for length in short if length)]))


def _eos_ids(model: PreTrainedModel, name: str) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.get_text_config().eos_token_id
    if ids is None:
        return frozenset()
    listed = ids if isinstance(ids, list | tuple) else [ids]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
        raise ValueError(f"{name}: eos_token_id: found {str(ids)[:60]!r}, expected a token id or a list of them")
    return frozenset(listed)


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target, the draft that speaks for it, and their common tokenizer."""

    target: HuggingFaceModel
    draft: HuggingFaceModel
    tokenizer: PreTrainedTokenizerBase
