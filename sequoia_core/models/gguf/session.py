"""A token tree in a llama.cpp context: each leaf is a sequence, and a node belongs to those of the leaves below it.

Sequence 0 is the committed text. Shapes: q = tokens in one pass, V = vocabulary.
"""

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...files.gguf_header import MOST_SEQUENCES
from ..protocol import parents_of
from .bindings import Batch, Library

FIRST_SEQUENCES = 16  # of a new context, times 4 or 16 is `MOST_SEQUENCES`


class LlamaCppSession:
    """One text, with one tree at its end, in a context of its own (see `protocol.Session`).

    Args:
        make_context: takes how many sequences it may hold, returns a context of llama.cpp, freed with this session.
        vocab_size: logits of real tokens, of `rows` that the model has.
        owner: the model, which has to live as long.
        threads: of its passes; None for as many as torch uses at the time.
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
        rows: int,
        vocab_size: int,
        owner: object,
        threads: int | None = None,
    ) -> None:
        self._library, self._make_context, self._owner = library, make_context, owner
        self._hold(make_context(FIRST_SEQUENCES), FIRST_SEQUENCES)
        self.capacity, self._rows, self._vocab_size = capacity, rows, vocab_size
        self._threads, self.length = threads, 0
        self._through = np.zeros(capacity, np.int32)  # of each token held: a sequence that it belongs to
        self._positions = np.zeros(capacity, np.int32)
        self._ends: dict[int, int] = {}  # of tokens at which a sequence ends: that sequence
        self._unused = [*range(self._sequence_count - 1, -1, -1)]

    def _hold(self, context: int, sequences: int) -> None:
        self._context, self._sequence_count = context, sequences
        self._free = weakref.finalize(self, self._library.c.llama_free, context)
        self._free.atexit = False
        self._memory = self._library.c.llama_get_memory(context)

    def _grow(self) -> None:
        """Move to a context of more sequences; the first has few, since llama.cpp clears V logits for each."""
        c, before, held = self._library.c, self._sequence_count, self._free
        state = np.empty(c.llama_state_get_size(self._context), np.uint8)
        size = c.llama_state_get_data(self._context, state.ctypes.data, len(state))
        self._hold(self._make_context(4 * before), 4 * before)
        if c.llama_state_set_data(self._context, state.ctypes.data, size) != size:
            raise RuntimeError(f"llama.cpp: a text of {self.length} tokens was not copied ({self._library.error()})")
        held()
        self._unused = [*range(self._sequence_count - 1, before - 1, -1)]

    @torch.inference_mode()
    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        count, first = len(ids), self.length
        if first + count > self.capacity:
            raise ValueError(f"cache: found {first} + {count} tokens, expected at most {self.capacity} slots")
        parents = parents_of(tree_mask.numpy(), first)
        own = positions.numpy().astype(np.int32)
        self._positions[first : first + count] = own
        sequences = self._sequences(parents)
        flat = np.fromiter((each for row in sequences for each in row), np.int32)
        counts = np.fromiter(map(len, sequences), np.int32, count)
        rows = flat.ctypes.data + 4 * np.concatenate([[0], np.cumsum(counts[:-1])]).astype(np.uint64)
        tokens, wanted = ids.numpy().astype(np.int32), np.zeros(count, np.int8)
        wanted[count - keep :] = 1
        addresses = (array.ctypes.data for array in (own, counts, rows, wanted))
        threads = self._threads or torch.get_num_threads()
        self._library.c.llama_set_n_threads(self._context, threads, threads)
        status = self._library.c.llama_decode(self._context, Batch(count, tokens.ctypes.data, None, *addresses))
        if status:
            raise RuntimeError(f"llama.cpp: a pass over {count} tokens failed ({status}: {self._library.error()})")
        self.length += count
        logits = np.ctypeslib.as_array(self._library.c.llama_get_logits(self._context), (keep, self._rows))
        return torch.from_numpy(logits)[:, : self._vocab_size]

    def _sequences(self, parents: np.ndarray) -> list[list[int]]:
        """Return which sequences each new token belongs to, one for each leaf, and give those their cached paths."""
        first, ends = self.length, self._ends
        through: list[list[int]] = [[] for _ in parents]
        for node in range(len(parents) - 1, -1, -1):
            if through[node]:
                continue  # a leaf below it has named its sequence
            top = node
            while (parent := int(parents[top])) >= first:
                top = parent - first
            sequence = ends.pop(parent, None)
            if sequence is None:
                sequence = self._begin(parent)
            ends[first + node] = sequence
            above = node
            while True:
                through[above].append(sequence)
                if above == top:
                    break
                above = int(parents[above]) - first
        self._through[first : first + len(parents)] = [each[0] for each in through]
        return through

    def _begin(self, parent: int) -> int:
        """Return a new sequence that holds the path to a cached token."""
        if not self._unused:
            if self._sequence_count >= MOST_SEQUENCES:
                raise ValueError(
                    f"tree: found more than {MOST_SEQUENCES} leaves, expected at most {MOST_SEQUENCES} in llama.cpp"
                )
            self._grow()
        sequence = self._unused.pop()
        if parent >= 0:
            stop = int(self._positions[parent]) + 1
            self._library.c.llama_memory_seq_cp(self._memory, int(self._through[parent]), sequence, 0, stop)
        return sequence

    def commit(self, start: int, slots: Sequence[int]) -> None:
        last, c = (start + slots[-1] if slots else start - 1), self._library.c
        if last < 0:
            c.llama_memory_seq_keep(self._memory, 0)
            c.llama_memory_seq_rm(self._memory, 0, -1, -1)
        else:
            kept, stop = int(self._through[last]), int(self._positions[last]) + 1
            c.llama_memory_seq_rm(self._memory, kept, stop, -1)
            if kept:  # what was sequence 0 goes its own way somewhere in the tree
                c.llama_memory_seq_rm(self._memory, 0, -1, -1)
                c.llama_memory_seq_cp(self._memory, kept, 0, -1, -1)
            c.llama_memory_seq_keep(self._memory, 0)
        moved = start + np.asarray(slots, np.int64)
        self.length = start + len(moved)
        self._positions[start : self.length] = self._positions[moved]
        self._through[: self.length] = 0
        self._ends = {self.length - 1: 0} if self.length else {}
        self._unused = [*range(self._sequence_count - 1, 0 if self.length else -1, -1)]

    def see(self, start: int, states: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        self._library.c.llama_synchronize(self._context)
