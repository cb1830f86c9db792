"""A KV cache for token trees that retains only the accepted path.

q = number of tokens in a pass, kv = number of all tokens, V = vocabulary size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

Shape = tuple[torch.device, int, int]  # device, heads and width of a layer's keys or values


class _Layer(CacheLayerMixin):
    """One layer's view of the cache's buffers."""

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

    All keys and values of the same shape share one tensor [rows, heads, capacity, width], so that committing a path is
    one gather for most models. Latent attention has two shapes, since its keys are wider than its values.

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
        self._buffers: dict[Shape, torch.Tensor] = {}
        self._used: Counter[Shape] = Counter()  # number of rows of each buffer that belong to a layer
        self._places: dict[int, list[tuple[Shape, int]]] = {}  # layer -> buffer and row of its keys, and of its values

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
        """Store keys and values [1, heads, q, width]; return views [1, heads, kv, width] of all tokens."""
        key_row, value_row = self.rows(layer, keys, values)
        if self.slots is not None:
            key_row.index_copy_(1, self.slots, keys[0])
            value_row.index_copy_(1, self.slots, values[0])
            return key_row[None, :, : self.visible], value_row[None, :, : self.visible]
        stop = self.length + keys.shape[2]
        key_row[:, self.length : stop] = keys[0]
        value_row[:, self.length : stop] = values[0]
        return key_row[None, :, :stop], value_row[None, :, :stop]

    def rows(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values in all slots, [heads, capacity, width]; allocate them like the arguments."""
        if layer not in self._places:
            self._allocate(layer, keys, values)
        (key_shape, key_row), (value_shape, value_row) = self._places[layer]
        return self._buffers[key_shape][key_row], self._buffers[value_shape][value_row]

    def _allocate(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Give a layer rows in the buffers of its shapes.

        The first buffers of a device have rows for all layers. Layers of other shapes are rare, so theirs grow.
        """
        device = keys.device
        count = len(self.layers) if self._shares is None else self._shares[device]
        if any(shape[0] == device for shape in self._buffers):
            count = 1
        shapes: list[Shape] = [(device, states.shape[1], states.shape[3]) for states in (keys, values)]
        self._places[layer] = []
        for shape in shapes:
            row = self._used[shape]
            buffer = self._buffers.get(shape)
            if buffer is None or row == len(buffer):
                _, heads, width = shape
                rows = count * shapes.count(shape)
                added = torch.zeros(rows, heads, self.capacity, width, dtype=keys.dtype, device=device)
                self._buffers[shape] = added if buffer is None else torch.cat([buffer, added])
            self._used[shape] += 1
            self._places[layer].append((shape, row))

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

    def commit_until(self, length: int) -> None:
        """Commit the slots below `length`, whose tokens were read by passes of fixed shape and moved by `gather`."""
        self.positions[self.length : length] = torch.arange(self.length, length)
        self.length = length

    def gather(self, first: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Copy slot `first + slots[i]` to slot `first + i`; return one of the buffers, which an earlier pass allocated.

        The arguments are int64 [1] and [m] on the only device.
        """
        source = first + slots
        to = first + torch.arange(len(slots), device=slots.device)
        for buffer in self._buffers.values():
            buffer.index_copy_(2, to, buffer.index_select(2, source))
        return buffer


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
