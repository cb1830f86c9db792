"""Sessions of models that run in `llama_x86.c`. q = number of tokens in a pass, V = vocabulary size."""

import ctypes
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .sampling_ops import tensor_address

# A pass records the hidden states of at most this many layers.
MAX_STATES = 16


class KernelSession:
    """One sequence in a model that runs in compiled passes, with a KV cache that is allocated once.

    Args:
        model: provides the C `functions`, the `address` of a model in C, and the sizes `hidden`, `vocab` and `context`.
        capacity: number of slots in the cache.
        vocab_size: number of logits returned for each token.
        state_indices: indices of the hidden states to record, as in `LanguageModel.open`.
    """

    logits_dtype = torch.float32
    read_wait_sec = 0.0
    states: Tensor | None = None

    def __init__(self, model: Any, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> None:
        if not 1 <= capacity < 2**31 or vocab_size > model.vocab or len(state_indices) > MAX_STATES:
            raise ValueError(
                f"cache: found {capacity} slots, {vocab_size} logits and {len(state_indices)} states, expected "
                f"at least 1 slot, at most {model.vocab} logits and at most {MAX_STATES} states"
            )
        self._state_indices = (ctypes.c_int32 * len(state_indices))(*state_indices)
        self.capacity = capacity
        self.length = 0
        self.vocab_size = vocab_size
        # Keep the model alive: the session uses its memory.
        self.model = model
        self.address = model.functions.sequoia_cache(model.address, capacity)
        if not self.address:
            raise MemoryError(f"cache: not enough memory for {capacity} tokens")
        weakref.finalize(self, model.functions.sequoia_cache_free, self.address).atexit = False

    @property
    def state_count(self) -> int:
        """Number of layers whose hidden states each pass records."""
        return len(self._state_indices)

    def check_capacity(self, count: int) -> None:
        """Raise ValueError unless `count` more tokens fit."""
        if self.length + count > self.capacity:
            raise ValueError(f"cache: found {self.length} + {count} tokens, expected at most {self.capacity} slots")

    def forward(self, ids: Tensor, positions: Tensor, tree_mask: Tensor, *, keep: int) -> Tensor:
        """Run a pass (see `protocol.Session`)."""
        count, covered = tree_mask.shape
        self.check_capacity(count)
        if not 0 <= keep <= count <= covered <= self.length + count:
            raise ValueError(
                f"found {keep} requested logit rows for {count} tokens and a mask over {covered} tokens, "
                f"expected at most {count} rows and a mask over {count} to {self.length + count} tokens"
            )
        logits = self._allocate_logits(keep)
        if self.state_count:
            self.states = torch.empty(count, self.state_count, self.model.hidden, dtype=torch.float32)
            self.model.functions.sequoia_keep_states(
                self.address, self.state_count, self._state_indices, self.states.data_ptr()
            )
        ids = ids.to(torch.int64).contiguous()
        positions = positions.to(torch.int64).contiguous()
        tree_mask = tree_mask.to(torch.float32).contiguous()
        arguments = (
            self.address,
            torch.get_num_threads(),
            self.length,
            count,
            tensor_address(ids, torch.int64, count),
            tensor_address(positions, torch.int64, count),
            covered,
            tensor_address(tree_mask, torch.float32, count, covered),
            keep,
        )
        status = self._run_pass(arguments, logits)
        if status < 0:
            raise ValueError(
                f"found ids {int(ids.min())} to {int(ids.max())} at positions {int(positions.min())} to "
                f"{int(positions.max())}, expected ids below {self.model.vocab} and positions below "
                f"{self.model.context}"
            )
        if not status:
            raise MemoryError(f"not enough memory for a pass over {count} tokens")
        self.length += count
        return logits[:, : self.vocab_size]

    def _allocate_logits(self, keep: int) -> Tensor:
        """Return an uninitialized tensor for logits, float32 [keep, V]."""
        return torch.empty(keep, self.model.vocab, dtype=torch.float32)

    def _run_pass(self, arguments: tuple, logits: Tensor) -> int:
        """Run one pass; the arguments and the result are those of `sequoia_forward` in C."""
        raise NotImplementedError

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Drop all tokens at slot `start` and above, except those at start + `slots` (see `protocol.Session`)."""
        is_rising = all(a < b for a, b in pairwise([-1, *slots, self.length - start]))
        if start < 0 or not is_rising:
            raise ValueError(
                f"cache: found slots {list(slots)[:8]} relative to {start}, "
                f"expected ascending slots up to {self.length}"
            )
        if list(slots) != list(range(len(slots))):
            array = (ctypes.c_int64 * len(slots))(*slots)
            self.model.functions.sequoia_keep(self.address, start, array, len(slots))
        self.length = start + len(slots)

    def observe_states(self, start: int, states: Tensor) -> None:
        pass

    def wait(self) -> None:
        """Do nothing: compiled code has finished when it returns."""


class CompiledSession(KernelSession):
    """One sequence in a `CompiledLlama`.

    Attributes:
        parents_first: whether a node must be read in a later pass than its parent.
        drafting_sec: total time that compiled drafting spent in passes, in seconds.
    """

    parents_first = False

    def __init__(self, model: Any, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> None:
        super().__init__(model, capacity, vocab_size, state_indices)
        self.drafting_sec = ctypes.c_double(0.0)

    def _run_pass(self, arguments: tuple, logits: Tensor) -> int:
        return self.model.functions.sequoia_forward(*arguments, logits.data_ptr())
