"""Token trees in a llama.cpp context: each leaf has a sequence, and a node belongs to the sequences of its leaves.

Sequence 0 contains the committed tokens.
"""

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sequoia_core.models.protocol import parent_slots
from sequoia_core.planning.profile import MAX_SEQUENCES

from .bindings import Batch, Library

# A context starts with few sequences, and their number is quadrupled as needed, up to `MAX_SEQUENCES`.
INITIAL_SEQUENCES = 16


class LlamaCppSession:
    """One token sequence with one tree at its end (see `protocol.Session`).

    Args:
        make_context: function that takes the number of sequences and returns a llama.cpp context; the session frees it.
        capacity: number of slots.
        logits_per_row: number of logits that the model computes for each token.
        vocab_size: number of logits that are returned; the others do not belong to tokens.
        weights: object that is kept alive with the session.
        threads: number of threads; None for as many as torch uses during the pass.
    """

    logits_dtype = torch.float32
    read_wait_sec = 0.0
    states: torch.Tensor | None = None

    def __init__(
        self,
        library: Library,
        make_context: Callable[[int], int],
        capacity: int,
        *,
        logits_per_row: int,
        vocab_size: int,
        weights: object,
        threads: int | None = None,
    ) -> None:
        self._library = library
        self._make_context = make_context
        self._weights = weights
        self._open_context(INITIAL_SEQUENCES)
        self.capacity = capacity
        self.length = 0
        self._logits_per_row = logits_per_row
        self._vocab_size = vocab_size
        self._threads = threads
        # Maps a token's slot to one of the sequences that the token belongs to.
        self._sequence_by_slot = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        # Maps the slot of a sequence's last token to the sequence.
        self._sequence_ends: dict[int, int] = {}
        self._unused = [*range(INITIAL_SEQUENCES - 1, -1, -1)]

    def _open_context(self, sequences: int) -> None:
        self._context = self._make_context(sequences)
        self._sequence_count = sequences
        self._free = weakref.finalize(self, self._library.c.llama_free, self._context)
        self._free.atexit = False
        self._memory = self._library.c.llama_get_memory(self._context)

    def _grow(self) -> None:
        """Move to a context with four times as many sequences; a pass clears one row of logits for each of them."""
        c = self._library.c
        before = self._sequence_count
        free_old = self._free
        state = np.empty(c.llama_state_get_size(self._context), np.uint8)
        size = c.llama_state_get_data(self._context, state.ctypes.data, len(state))
        self._open_context(4 * before)
        if c.llama_state_set_data(self._context, state.ctypes.data, size) != size:
            raise RuntimeError(
                f"llama.cpp: cannot copy {self.length} tokens to a larger context ({self._library.pop_error()})"
            )
        free_old()
        self._unused = [*range(self._sequence_count - 1, before - 1, -1)]

    @torch.inference_mode()
    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        c = self._library.c
        count = len(ids)
        first = self.length
        if first + count > self.capacity:
            raise ValueError(f"cache: found {first} + {count} tokens, expected at most {self.capacity} slots")
        parents = parent_slots(tree_mask.numpy(), first)
        new_positions = positions.numpy().astype(np.int32)
        self._positions[first : first + count] = new_positions
        sequences = self._assign_sequences(parents)
        flat = np.fromiter((sequence for row in sequences for sequence in row), np.int32)
        counts = np.fromiter(map(len, sequences), np.int32, count)
        rows = flat.ctypes.data + 4 * np.concatenate([[0], np.cumsum(counts[:-1])]).astype(np.uint64)
        tokens = ids.numpy().astype(np.int32)
        wanted = np.zeros(count, np.int8)
        wanted[count - keep :] = 1
        addresses = (array.ctypes.data for array in (new_positions, counts, rows, wanted))
        threads = self._threads or torch.get_num_threads()
        c.llama_set_n_threads(self._context, threads, threads)
        status = c.llama_decode(self._context, Batch(count, tokens.ctypes.data, None, *addresses))
        if status:
            raise RuntimeError(f"llama.cpp: a pass over {count} tokens failed ({status}: {self._library.pop_error()})")
        self.length += count
        logits = np.ctypeslib.as_array(c.llama_get_logits(self._context), (keep, self._logits_per_row))
        return torch.from_numpy(logits)[:, : self._vocab_size]

    def _assign_sequences(self, parents: np.ndarray) -> list[list[int]]:
        """Return the sequences of each new token, one per leaf below it, after extending or starting them."""
        first = self.length
        sequences: list[list[int]] = [[] for _ in parents]
        for node in range(len(parents) - 1, -1, -1):
            # This node is not a leaf: its sequences were assigned when its descendants were visited.
            if sequences[node]:
                continue
            path = [node]
            while (parent := int(parents[path[-1]])) >= first:
                path.append(parent - first)
            sequence = self._sequence_ends.pop(parent, None)
            if sequence is None:
                sequence = self._start_sequence(parent)
            self._sequence_ends[first + node] = sequence
            for above in path:
                sequences[above].append(sequence)
        self._sequence_by_slot[first : first + len(parents)] = [each[0] for each in sequences]
        return sequences

    def _start_sequence(self, parent: int) -> int:
        """Return a new sequence that contains the path to a cached token."""
        if not self._unused:
            if self._sequence_count >= MAX_SEQUENCES:
                raise ValueError(
                    f"tree: found more than {MAX_SEQUENCES} leaves, expected at most {MAX_SEQUENCES} in llama.cpp"
                )
            self._grow()
        sequence = self._unused.pop()
        if parent >= 0:
            stop = int(self._positions[parent]) + 1
            source = int(self._sequence_by_slot[parent])
            self._library.c.llama_memory_seq_cp(self._memory, source, sequence, 0, stop)
        return sequence

    def commit(self, start: int, slots: Sequence[int]) -> None:
        c = self._library.c
        last = start + slots[-1] if slots else start - 1
        if last < 0:
            c.llama_memory_seq_keep(self._memory, 0)
            c.llama_memory_seq_rm(self._memory, 0, -1, -1)
        else:
            sequence = int(self._sequence_by_slot[last])
            stop = int(self._positions[last]) + 1
            c.llama_memory_seq_rm(self._memory, sequence, stop, -1)
            # Sequence 0 took a different branch of the tree, so replace it with the accepted branch.
            if sequence:
                c.llama_memory_seq_rm(self._memory, 0, -1, -1)
                c.llama_memory_seq_cp(self._memory, sequence, 0, -1, -1)
            c.llama_memory_seq_keep(self._memory, 0)
        committed = start + np.asarray(slots, np.int64)
        self.length = start + len(committed)
        self._positions[start : self.length] = self._positions[committed]
        self._sequence_by_slot[: self.length] = 0
        self._sequence_ends = {self.length - 1: 0} if self.length else {}
        self._unused = [*range(self._sequence_count - 1, 0 if self.length else -1, -1)]

    def observe_states(self, start: int, states: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        self._library.c.llama_synchronize(self._context)
