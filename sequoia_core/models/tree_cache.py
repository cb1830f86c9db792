"""A KV cache that holds a whole tree, then keeps its accepted path. q = tokens of a pass, kv = all, V = vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


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
    """A KV cache allocated once, of whose slots any can be kept: a tree goes in, its accepted path stays.

    All layers of a device live in one tensor [2 * layers, heads, capacity, head_dim], so that committing a path is one
    gather.

    Args:
        shares: how many layers run on each device, where a model is spread over several; None for one device.
    """

    def __init__(self, layer_count: int, capacity: int, shares: Mapping[torch.device, int] | None = None) -> None:
        super().__init__(layers=[_Layer(self, i) for i in range(layer_count)])
        self.capacity = capacity
        self.length = 0
        self.pending = 0
        self.positions = torch.zeros(capacity, dtype=torch.int64)
        self.slots: torch.Tensor | None = None  # of a pass of fixed shape; else it writes after those held
        self._shares = shares
        self._buffers: dict[torch.device, torch.Tensor] = {}
        self._pairs: dict[int, torch.Tensor] = {}  # of each layer, its keys and values: a view of two rows

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
        pair = self._pairs.get(layer)
        if pair is None:
            pair = self._pairs[layer] = self._place(keys)
        if keys.shape != values.shape:
            raise ValueError(
                f"keys of {keys.shape[-1]} and values of {values.shape[-1]} numbers a head, as latent attention caches "
                "them, which do not fit one buffer"
            )
        if keys.shape[1:2] + keys.shape[3:] != pair.shape[1:2] + pair.shape[3:]:
            raise ValueError(
                f"keys of {keys.shape[1]} heads of {keys.shape[-1]} numbers in layer {layer}, of {pair.shape[1]} heads "
                f"of {pair.shape[-1]} before it"
            )
        if self.slots is not None:
            pair[0].index_copy_(1, self.slots, keys[0])
            pair[1].index_copy_(1, self.slots, values[0])
            return pair[0:1], pair[1:2]
        stop = self.length + keys.shape[2]
        pair[0, :, self.length : stop] = keys[0]
        pair[1, :, self.length : stop] = values[0]
        return pair[0:1, :, :stop], pair[1:2, :, :stop]

    def _place(self, keys: torch.Tensor) -> torch.Tensor:
        """Return buffers for a layer's keys and values beside the layers that run on the same device."""
        device = keys.device
        if device not in self._buffers:
            _, heads, _, width = keys.shape
            share = len(self.layers) if self._shares is None else self._shares[device]
            self._buffers[device] = torch.zeros(2 * share, heads, self.capacity, width, dtype=keys.dtype, device=device)
        row = 2 * sum(pair.device == device for pair in self._pairs.values())
        return self._buffers[device][row : row + 2]

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Keep of the slots from `start` on only `start + slots[i]`, rising, moved to `start + i`; forget the rest."""
        moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved < len(slots):
            source = torch.tensor(slots[moved:]) + start
            stop = start + len(slots)
            self.positions[start + moved : stop] = self.positions[source]
            for buffer in self._buffers.values():
                buffer[:, :, start + moved : stop] = buffer.index_select(2, source.to(buffer.device))
        self.length = start + len(slots)

    def gather(self, first: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Have slot `first + i` hold what slot `first + slots[i]` held, int64 [1] and [m] on the device."""
        (buffer,) = self._buffers.values()  # a pass has written to it, on one device
        to = first + torch.arange(len(slots), device=slots.device)
        return buffer.index_copy_(2, to, buffer.index_select(2, first + slots))


class CacheSession:
    """A session over a `TreeCache`; a kind of model adds `_logits`, one pass of it.

    Args:
        logits_dtype: of what its passes return; None for the model's.
        vocab_size: logits of real tokens; those of padding are cut off.
        reads: numbers of the states that it keeps of each pass, which `_logits` then sets.
    """

    read_wait_sec = 0.0
    states: torch.Tensor | None = None
    any_slot = False  # whether its passes can write to any slots and see any others, see `logits_at`

    def __init__(
        self, layers: int, capacity: int, *, device: torch.device, dtype: torch.dtype,
        logits_dtype: torch.dtype | None = None, vocab_size: int, shares: Mapping[torch.device, int] | None = None,
        reads: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.reads = tuple(reads)
        self.cache = TreeCache(layers, capacity, shares)
        self.device, self.dtype = torch.device(device), dtype
        if self.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for 40 ms at every new length (an H200)
        self.logits_dtype, self.vocab_size = logits_dtype or dtype, vocab_size

    @property
    def length(self) -> int:
        return self.cache.length

    @torch.inference_mode()
    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        self.cache.begin(positions)
        logits = self._logits(ids, positions, tree_mask, keep)
        self.cache.end()
        return logits[:, : self.vocab_size]

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        """Return the last `keep` rows of logits, [keep, rows of the model]."""
        raise NotImplementedError

    def logits_at(
        self, slots: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits [q, V] of tokens in any slots, int64 [q] each on the device; `length` stays.

        The mask is [1, 1, q, capacity] of the model's dtype, over all slots there are.
        """
        self.cache.slots = slots
        try:
            return self._logits(ids, positions, mask, len(ids))[:, : self.vocab_size]
        finally:
            self.cache.slots = None

    @torch.inference_mode()
    def commit(self, start: int, slots: Sequence[int]) -> None:
        self.cache.commit(start, slots)

    def see(self, start: int, states: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mask(self, tree_mask: torch.Tensor, window: int | None = None) -> torch.Tensor:
        """Return the additive mask of a pass, [1, 1, q, kv] of the model's dtype on its device.

        `window` is how many positions back a token sees, with a sliding window.
        """
        if self.cache.slots is not None:
            return tree_mask  # already of all slots
        queries, covered = tree_mask.shape
        total = self.cache.length + queries
        mask = torch.zeros(1, 1, queries, total, dtype=self.dtype)
        mask[0, 0, :, total - covered :] = tree_mask
        if window is not None:
            keys = self.cache.positions[:total]
            too_old = keys[None, :] <= keys[self.cache.length :, None] - window
            mask[0, 0].masked_fill_(too_old, -torch.inf)
        return mask.to(self.device)
