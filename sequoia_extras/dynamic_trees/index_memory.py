"""A text index's memory in the layout that compiled code uses. Needs only NumPy, not torch."""

import ctypes
from collections import deque

import numpy as np

CONTEXT_LENGTHS = (12, 8, 6, 4, 3, 2, 1)  # lengths of the contexts that are looked up, longest first
MAX_CONTEXT = CONTEXT_LENGTHS[0]
MAX_OCCURRENCES = 16  # in each text, only this many of a context's newest occurrences are counted
MAX_CANDIDATES = 24  # maximum number of candidates per context
# Dimensions: source (text or store), context length, count of the token, count of other tokens, whether it is newest.
BIN_SHAPE = (2, len(CONTEXT_LENGTHS), 4, 5, 2)
BIN_COUNT = int(np.prod(BIN_SHAPE))
POSITION_MASK = 0xFFFFFFFF  # compiled code stores positions modulo 2^32
HALVING_TRIALS = 512.0  # a bin's counts are halved when it reaches this number of trials
NODE_COLUMNS = tuple("parents ranks depths tokens probs scores positions sources lengths".split())

_POINTER, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _RingState(ctypes.Structure):
    _fields_ = [
        *((name, _COUNT) for name in "capacity max_context total text_length learns".split()),
        *((name, _POINTER) for name in "tokens heads earlier hits trials".split()),
    ]


class _TreeState(ctypes.Structure):
    _fields_ = [
        *((name, _COUNT) for name in "max_size max_depth max_children".split()),
        *((name, _REAL) for name in ("min_score", "gain")),
        *((name, _POINTER) for name in NODE_COLUMNS),
        *((name, _POINTER) for name in "keys heap waiting chances children".split()),
    ]


class Ring:
    """The newest tokens of one or more texts, with chains of the positions at which each context occurred.

    Takes about 60 bytes per token of capacity.

    Args:
        capacity: number of tokens to store, rounded up to a power of two; the oldest tokens are overwritten.
        max_context: length of the longest context that is looked up.
        hits, trials: float64 [prod(BIN_SHAPE)], number of correct candidates and of all candidates in each bin; rings
            may share these arrays.
        learns: whether added tokens are counted in these arrays.

    Attributes:
        state: contains `capacity`, `max_context`, `text_length`, and `total`: the capacity plus all tokens ever added.
        tokens: int32 [capacity], -1 between texts.
        heads: uint32 [lengths, capacity], the newest position after a context with that hash.
        earlier: uint32 [lengths, capacity], each position's predecessor in its chain; 0 if there is none.
        positions: context -> newest positions after it; replaces `heads` and `earlier` without compiled code.
        address: address of the C structure.
    """

    def __init__(
        self, capacity: int, max_context: int, *, hits: np.ndarray, trials: np.ndarray, learns: bool = False
    ) -> None:
        if capacity < 1 or not 1 <= max_context <= MAX_CONTEXT:
            raise ValueError(
                f"found capacity {capacity} and max_context {max_context}, expected at least 1, and 1 to {MAX_CONTEXT}"
            )
        if any(table.dtype != np.float64 or table.shape != (BIN_COUNT,) for table in (hits, trials)):
            raise ValueError(f"found tables {hits.shape} and {trials.shape}, expected float64 [{BIN_COUNT}] for both")
        capacity = max(1 << (capacity - 1).bit_length(), 2 * MAX_CONTEXT)
        self.tokens = np.full(capacity, -1, np.int32)
        self.heads, self.earlier = (np.zeros((len(CONTEXT_LENGTHS), capacity), np.uint32) for _ in range(2))
        self.hits = hits
        self.trials = trials
        self.positions: dict[tuple[int, ...], deque[int]] = {}
        self.state = _RingState(
            capacity=capacity,
            max_context=max_context,
            total=capacity,
            learns=learns,
            **{name: getattr(self, name).ctypes.data for name in ("tokens", "heads", "earlier", "hits", "trials")},
        )
        self.address = ctypes.addressof(self.state)

    def token_at(self, position: int) -> int:
        return int(self.tokens[position & self.state.capacity - 1])

    def __len__(self) -> int:
        """Return the number of stored tokens, including one end marker per text."""
        return min(self.state.total - self.state.capacity, self.state.capacity)


class TreeColumns:
    """Buffers for a run's lookup trees.

    Args:
        max_size, max_depth, max_children: limits of a tree.
        min_score: smallest score of a node.

    Attributes:
        columns: name -> int64 or float64 [max_size]. The last three `NODE_COLUMNS` describe an occurrence of the node:
            its position, its source (0 for this text, 1 for the store) and the length of the match.
        state: contains `gain`, a factor on every node's probability.
        address: address of the C structure.
    """

    def __init__(self, *, max_size: int, max_depth: int, max_children: int, min_score: float) -> None:
        if max_size < 1:
            raise ValueError(f"max_size: found {max_size}, expected at least 1 (the root)")
        self.columns = {
            name: np.zeros(max_size, float if name in ("probs", "scores") else np.int64)
            for name in (*NODE_COLUMNS, "children")
        }
        waiting = max_size * MAX_CANDIDATES
        self._heap = {
            "heap": np.zeros(waiting, np.int64),
            "waiting": np.zeros((waiting, 6), np.int64),
            "keys": np.zeros(waiting),
            "chances": np.zeros(waiting),
        }
        self.state = _TreeState(
            max_size=max_size,
            max_depth=max_depth,
            max_children=max_children,
            min_score=min_score,
            gain=1.0,
            **{name: array.ctypes.data for name, array in (self.columns | self._heap).items()},
        )
        self.address = ctypes.addressof(self.state)
