"""A KV cache for token trees that retains only the accepted path.

q = number of tokens in a pass, kv = number of all tokens, V = vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class _Layer(CacheLayerMixin):
    """One layer's view of the cache's buffer."""

    def __init__(self, cache: TreeCache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index
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
    """A KV cache of fixed capacity: a pass adds a tree, and `commit` retains only the slots of the accepted path.

    All layers of a device share one tensor [2 * layers, heads, capacity, head_dim], so committing a path is one gather.

    Args:
        shares: number of layers on each device, for a model spread over several; None for one device.
    """

    def __init__(self, layer_count: int, capacity: int, shares: Mapping[torch.device, int] | None = None) -> None:
        super().__init__(layers=[_Layer(self, i) for i in range(layer_count)])
        self.capacity = capacity
        self.length = 0
        self.pending = 0
        self.positions = torch.zeros(capacity, dtype=torch.int64)
        self.slots: torch.Tensor | None = None  # slots to write in a pass of fixed shape; None to append
        self.visible = capacity  # number of slots that such a pass attends to
        self._shares = shares
        self._buffers: dict[torch.device, torch.Tensor] = {}
        self._pairs: dict[int, torch.Tensor] = {}  # layer -> view of its two rows, keys and values

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def begin(self, positions: torch.Tensor) -> None:
        """Start a pass over q tokens at these positions, int64 [q]."""
        self.pending = len(positions)
        if self.length + self.pending > self.capacity:
            raise ValueError(
                f"cache: found {self.length} + {self.pending} tokens, expected at most {self.capacity} slots"
            )
        self.positions[self.length : self.length + self.pending] = positions

    def end(self) -> None:
        """Add the tokens of the pass to the cache."""
        self.length += self.pending
        self.pending = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values [1, heads, q, head_dim]; return views [1, heads, kv, head_dim] of all tokens."""
        pair = self._pairs.get(layer)
        if pair is None:
            pair = self._pairs[layer] = self._allocate(keys)
        if keys.shape != values.shape:
            raise ValueError(
                f"keys have size {keys.shape[-1]} and values size {values.shape[-1]} per head, as with latent "
                "attention, so they do not fit into one buffer"
            )
        if keys.shape[1:2] + keys.shape[3:] != pair.shape[1:2] + pair.shape[3:]:
            raise ValueError(
                f"layer {layer} has {keys.shape[1]} key heads of size {keys.shape[-1]}, whereas earlier layers have "
                f"{pair.shape[1]} of size {pair.shape[-1]}"
            )
        if self.slots is not None:
            pair[0].index_copy_(1, self.slots, keys[0])
            pair[1].index_copy_(1, self.slots, values[0])
            return pair[0:1, :, : self.visible], pair[1:2, :, : self.visible]
        stop = self.length + keys.shape[2]
        pair[0, :, self.length : stop] = keys[0]
        pair[1, :, self.length : stop] = values[0]
        return pair[0:1, :, :stop], pair[1:2, :, :stop]

    def _allocate(self, keys: torch.Tensor) -> torch.Tensor:
        """Return a layer's two rows in its device's buffer."""
        device = keys.device
        if device not in self._buffers:
            _, heads, _, width = keys.shape
            share = len(self.layers) if self._shares is None else self._shares[device]
            self._buffers[device] = torch.zeros(2 * share, heads, self.capacity, width, dtype=keys.dtype, device=device)
        row = 2 * sum(pair.device == device for pair in self._pairs.values())
        return self._buffers[device][row : row + 2]

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Move slot `start + slots[i]` to `start + i` for each i, and discard all other slots from `start` on.

        `slots` must be increasing.
        """
        moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved < len(slots):
            source = torch.tensor(slots[moved:]) + start
            stop = start + len(slots)
            self.positions[start + moved : stop] = self.positions[source]
            for buffer in self._buffers.values():
                buffer[:, :, start + moved : stop] = buffer.index_select(2, source.to(buffer.device))
        self.length = start + len(slots)

    def gather(self, first: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Copy slot `first + slots[i]` to slot `first + i`; the arguments are int64 [1] and [m] on the device."""
        (buffer,) = self._buffers.values()  # there is one device, whose buffer an earlier pass allocated
        to = first + torch.arange(len(slots), device=slots.device)
        return buffer.index_copy_(2, to, buffer.index_select(2, first + slots))


class CacheSession:
    """A session with a `TreeCache`; subclasses implement `_logits`, one pass of the model.

    Args:
        logits_dtype: dtype of the logits; None for the model's.
        vocab_size: number of real tokens; padding logits are dropped.
        state_indices: hidden states to record in each pass; `_logits` sets `states`.
    """

    read_wait_sec = 0.0
    states: torch.Tensor | None = None
    any_slot = False  # whether passes can write and attend to arbitrary slots (see `logits_at`)
    rereads_paths = False  # whether accepted drafted tokens are read again, as by draft heads
    windows: tuple[int | None, ...] = (None,)  # sizes of the layers' sliding windows in positions; None for no window

    def __init__(
        self,
        layers: int,
        capacity: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        logits_dtype: torch.dtype | None = None,
        vocab_size: int,
        shares: Mapping[torch.device, int] | None = None,
        state_indices: Sequence[int] = (),
    ) -> None:
        self.state_indices = tuple(state_indices)
        self.cache = TreeCache(layers, capacity, shares)
        self.device = torch.device(device)
        self.dtype = dtype
        if self.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN would plan for 40 ms at every new length (H200)
        self.logits_dtype = logits_dtype or dtype
        self.vocab_size = vocab_size
        self._masks: Mapping[int | None, torch.Tensor] = {}  # window -> mask of a pass of fixed shape

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
        """Return the last `keep` rows of logits, [keep, number of the model's logits]."""
        raise NotImplementedError

    def logits_at(
        self,
        slots: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        masks: Mapping[int | None, torch.Tensor],
    ) -> torch.Tensor:
        """Return the logits [q, V] of tokens in arbitrary slots, without changing `length`.

        Args:
            slots, ids, positions: int64 [q], on the device.
            masks: for each of `windows`, an additive mask [1, 1, q, v] over the first v slots, in the model's dtype.
        """
        self.cache.slots = slots
        self._masks = masks
        mask = masks[self.windows[0]]
        self.cache.visible = mask.shape[-1]
        try:
            return self._logits(ids, positions, mask, len(ids))[:, : self.vocab_size]
        finally:
            self.cache.slots = None

    @torch.inference_mode()
    def commit(self, start: int, slots: Sequence[int]) -> None:
        self.cache.commit(start, slots)

    def observe_states(self, start: int, states: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mask(self, tree_mask: torch.Tensor, window: int | None = None) -> torch.Tensor:
        """Return the additive mask of a pass, [1, 1, q, kv] in the model's dtype on its device.

        `window` is the size of a sliding window in positions.
        """
        if self.cache.slots is not None:
            return self._masks[window]
        queries, covered = tree_mask.shape
        total = self.cache.length + queries
        mask = torch.zeros(1, 1, queries, total, dtype=self.dtype)
        mask[0, 0, :, total - covered :] = tree_mask
        if window is not None:
            keys = self.cache.positions[:total]
            too_old = keys[None, :] <= keys[self.cache.length :, None] - window
            mask[0, 0].masked_fill_(too_old, -torch.inf)
        return mask.to(self.device)
