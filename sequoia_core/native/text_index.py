"""The memory of a text index, and the calls of `text_index.c` on it where that can be built.

`decoding.growing.plain_index` answers the same without compiled code. Knows arrays only, no torch.
"""

import ctypes
from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np

from .compile_c import load

LENGTHS = (12, 8, 6, 4, 3, 2, 1)  # of the contexts that are looked up, longest first
LONGEST = LENGTHS[0]
OCCURRENCES = 16  # of a context in one text that are counted: the newest
STEPS = 48  # along a chain, which may hold other contexts of the same hash
MOST = 24  # candidates after one context
BINS = (2, len(LENGTHS), 4, 5, 2)  # text or store, length, how often, how often other tokens, whether the newest
BIN_COUNT = int(np.prod(BINS))
WRAP = 0xFFFFFFFF  # places are taken modulo 2^32
FORGOTTEN_AT = 512.0  # trials of a bin at which all it counted is halved

_POINTER, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_FUNCTIONS = {
    "index_extend": (None, _POINTER, _POINTER, _POINTER, _COUNT),
    "index_end": (None, _POINTER),
    "index_grow": (_COUNT, _POINTER, _POINTER, _POINTER, _COUNT, _COUNT),
}


class _Ring(ctypes.Structure):
    _fields_ = [
        *((name, _COUNT) for name in "capacity max_context total text_length learns".split()),
        *((name, _POINTER) for name in "tokens heads earlier hits trials".split()),
    ]


class _Tree(ctypes.Structure):
    _fields_ = [
        *((name, _COUNT) for name in "max_size max_depth max_children".split()),
        *((name, _REAL) for name in ("least", "gain")),
        *((name, _POINTER) for name in "parents ranks depths tokens probs scores places sources lengths".split()),
        *((name, _POINTER) for name in "keys heap waiting chances children".split()),
    ]


@lru_cache(maxsize=1)
def compiled() -> Any:
    """Return the functions of `text_index.c`, or None where they cannot be built."""
    return load(["text_index.c"], ["-march=native"], _FUNCTIONS, reads=["text_index.h"])[0]


class Ring:
    """The newest tokens of one or more texts, with chains of the places where each context occurred.

    About 60 bytes for each token that there is room for.

    Args:
        room: tokens that are kept, rounded up to a power of two; the oldest are overwritten.
        max_context: the longest context that is looked up.
        hits, trials: float64 [prod(BINS)], how often candidates of a kind came true, of how many; other rings may
            share them.
        learns: whether tokens that are added are counted in these tables.

    Attributes:
        state: `capacity`, `max_context`, `total` (tokens ever added, beginning at the capacity), `text_length`.
        tokens: int32 [capacity], -1 between texts.
        heads: uint32 [lengths, capacity], the newest place after a context of that hash.
        earlier: uint32 [lengths, capacity], from a place back to the one before it in its chain; 0 for none.
        places: context -> the newest places after it, without compiled code, which has the two arrays above instead.
        address: of the structure in C.
    """

    def __init__(
        self, room: int, max_context: int, *, hits: np.ndarray, trials: np.ndarray, learns: bool = False
    ) -> None:
        if room < 1 or not 1 <= max_context <= LONGEST:
            raise ValueError(
                f"found room for {room} tokens, contexts of {max_context}, expected 1 or more, 1 to {LONGEST}"
            )
        if any(table.dtype != np.float64 or table.shape != (BIN_COUNT,) for table in (hits, trials)):
            raise ValueError(f"found tables {hits.shape} and {trials.shape}, expected float64 [{BIN_COUNT}] both")
        capacity = max(1 << (room - 1).bit_length(), 2 * LONGEST)
        self.tokens = np.full(capacity, -1, np.int32)
        self.heads, self.earlier = (np.zeros((len(LENGTHS), capacity), np.uint32) for _ in range(2))
        self.hits, self.trials = hits, trials
        self.places: dict[tuple[int, ...], deque[int]] = {}
        self.state = _Ring(
            capacity=capacity, max_context=max_context, total=capacity, text_length=0, learns=learns,
            **{name: getattr(self, name).ctypes.data for name in ("tokens", "heads", "earlier", "hits", "trials")},
        )  # fmt: skip
        self.address = ctypes.addressof(self.state)

    def token_at(self, place: int) -> int:
        return int(self.tokens[place & self.state.capacity - 1])

    @property
    def held(self) -> int:
        """How many tokens are kept, ends of texts included."""
        return min(self.state.total - self.state.capacity, self.state.capacity)


class TreeColumns:
    """Buffers for the trees of a run.

    Args:
        max_size, max_depth, max_children: bounds of a tree.
        least: the smallest score of a node.

    Attributes:
        columns: name -> int64 or float64 [max_size]: parents, ranks, depths, tokens, probs, scores, and where a node
            was found: the place of an occurrence, its source (0 this text, 1 the store) and the length of the match.
        state: of it `gain` may be set, by which the chance of every node is multiplied.
        address: of the structure in C.
    """

    def __init__(self, *, max_size: int, max_depth: int, max_children: int, least: float) -> None:
        if max_size < 1:
            raise ValueError(f"found room for {max_size} nodes, expected at least the root")
        whole = "parents ranks depths tokens places sources lengths children".split()
        self.columns: dict[str, np.ndarray] = {name: np.zeros(max_size, np.int64) for name in whole}
        self.columns |= {name: np.zeros(max_size) for name in ("probs", "scores")}
        waiting = max_size * MOST
        self._heap: dict[str, np.ndarray] = {
            "heap": np.zeros(waiting, np.int64),
            "waiting": np.zeros((waiting, 6), np.int64),
        }
        self._heap |= {name: np.zeros(waiting) for name in ("keys", "chances")}
        self.state = _Tree(
            max_size=max_size, max_depth=max_depth, max_children=max_children, least=least, gain=1.0,
            **{name: array.ctypes.data for name, array in (self.columns | self._heap).items()},
        )  # fmt: skip
        self.address = ctypes.addressof(self.state)
