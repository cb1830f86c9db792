"""Trees that grow while they are drafted, by `tree_expansion.c` where it can be built.

Repeats `decoding.growing.top_k_expansion` and `sampled_expansion` number for number: a pass takes microseconds here, a
tenth of a millisecond there.
Knows arrays only. n = nodes so far, w = nodes of a pass, k = ranks, V = vocabulary, N = largest size.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from . import sampling_ops
from .compile_c import load

SOURCES = ("tree_expansion.c", "sampling_ops.c", "text_index.c")
HEADERS = ("tree_expansion.h", "text_index.h")
TABLES = 13  # of chances: see the places that `tree_expansion.c` names
_POINTER, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Shaping(ctypes.Structure):
    _fields_ = [
        *((name, _COUNT) for name in "max_size max_depth beam branch most_read sampled draws vocab threads".split()),
        *((name, _COUNT) for name in "root_position bins".split()),
        *((name, _POINTER) for name in "centres values mass_edges expected step draft".split()),
        *((name, _REAL) for name in "gain threshold least_gain".split()),
        *((name, ctypes.c_float) for name in "inverse_temperature padding".split()),
        *((name, _COUNT) for name in "size width read".split()),
        *((name, _POINTER) for name in "parents ranks depths tokens cache_positions from_text probs scores".split()),
        *((name, _POINTER) for name in "frontier ids pass_positions pass_mask mask rows".split()),
        *((name, _POINTER) for name in "best drawn best_probs drawn_probs planned".split()),
        *((name, _POINTER) for name in "order other next scratch firsts counts sees".split()),
        *((name, _POINTER) for name in "sorted previous merged expected_falling text store looked_up others".split()),
        *((name, _REAL) for name in "least_score most_sure".split()),
        *(("both", _REAL * 3), ("beside", _REAL * 2)),
        *(("weights", _POINTER), ("totals", _POINTER), ("draw_ranks", _COUNT)),
        *(("first_rows", _POINTER), ("top_p", _REAL), ("top_k", _COUNT)),
    ]


_FUNCTIONS = {
    "tree_start": (None, _POINTER),
    "tree_frontier": (_COUNT, _POINTER),
    "tree_read": (_COUNT, _POINTER, _POINTER, _COUNT),
    "tree_draw": (_COUNT, _POINTER, _POINTER, _COUNT),
    "tree_kept": (_COUNT, _POINTER),
}


@lru_cache(maxsize=1)
def compiled() -> Any:
    """Return the functions of `tree_expansion.c`, or None where they cannot be built."""
    return load(SOURCES, sampling_ops.FLAGS, _FUNCTIONS, reads=HEADERS)[0]


class Shaping:
    """The nodes of one step's tree and all buffers of a run, allocated once.

    Args:
        max_size, beam, branch: as in `decoding.growing.expansion.TreeBounds`.
        most_read: nodes that the draft reads in one step at most.
        top_p, top_k: what cuts the rows of first drawn children.

    Attributes:
        address: of the structure in C.
        most_read: nodes that the draft reads for one tree at most.
        most_draws: tokens that may be drawn for one tree; twice as many beside looked-up ones.
        rows: float32 [most_read, V], the draft's distributions in the order in which nodes were read; None before any.
        first_rows: as `rows`, what the first drawn children came from; None where nothing cuts it.
    """

    def __init__(
        self, *, max_size: int, beam: int, branch: int, most_read: int, top_p: float = 1.0, top_k: int = 0
    ) -> None:
        self._arrays: dict[str, Any] = {}  # arrays; None where a policy has none
        self._shaping = _Shaping(max_size=max_size, beam=beam, branch=branch, most_read=most_read)
        self.address = ctypes.addressof(self._shaping)
        self.most_read, self.most_draws = most_read, most_read * branch
        children = beam * branch  # candidates of one frontier; beside them the kept nodes, and as many looked up anew
        nodes = 2 * max_size + children
        for names, size, kind in (
            ("parents ranks depths tokens cache_positions from_text order other next scratch", nodes, np.int64),
            ("probs scores sorted previous merged expected_falling others", nodes, np.float64),
            ("frontier ids pass_positions", beam, np.int64),
            ("firsts counts", max_size, np.int64),
            ("sees", max_size * max_size, np.float32),
            ("best", children, np.int64),
            ("drawn", 2 * children, np.int64),  # as many again may be left out, as they were looked up
            ("best_probs planned", children, np.float64),
            ("drawn_probs", 2 * children, np.float64),
            ("weights totals", beam, np.float64),
            ("pass_mask", beam * most_read, np.float32),
            ("mask", most_read * most_read, np.float32),
        ):
            for name in names.split():
                self._keep(name, np.empty(size, kind))
        self.rows: torch.Tensor | None = None
        self.first_rows: torch.Tensor | None = None
        self._shaping.top_p, self._shaping.top_k = top_p, top_k
        given = (torch.from_numpy(self._arrays[name]) for name in ("ids", "pass_positions", "pass_mask"))
        self._ids, self._positions, self._mask = given

    def _keep(self, name: str, array: np.ndarray | None) -> None:
        if array is not None and self._arrays.get(name) is array:
            return
        self._arrays[name] = array
        setattr(self._shaping, name, None if array is None else array.__array_interface__["data"][0])

    def begin(  # noqa: PLR0913
        self,
        token: int,
        *,
        root_position: int,
        max_depth: int,
        temperature: float,
        sampled: bool,
        draws: bool,
        tables: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
        gain: float,
        threshold: float,
        expected: np.ndarray,
        token_costs: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        """Start a tree of the root alone.

        Args:
            max_depth: edges from the root; the draft reads no node at it or below.
            temperature: of the draft's distributions.
            sampled: as `SampledExpansion`, with its `threshold`; otherwise as `TopKExpansion`.
            draws: tokens are drawn; otherwise the most likely ones are used instead.
            tables: centres float64 [b], values float64 [T, b] and edges of the mass left, float64 [2], as in
                `design.calibration`; None for the draft's own probabilities.
            gain: what the values of tables are multiplied by.
            expected: float64 [k], chance by rank.
            token_costs: as `decoding.growing.expansion.TokenCosts`; None counts no cost.
        """
        shaping, arrays = self._shaping, self._arrays
        shaping.size, shaping.read, shaping.root_position, shaping.max_depth = 1, 0, root_position, max_depth
        shaping.threads, shaping.inverse_temperature = torch.get_num_threads(), sampling_ops.inverse(temperature)
        shaping.sampled, shaping.draws, shaping.gain, shaping.threshold = sampled, draws, gain, threshold
        for name, value in (("parents", -1), ("ranks", 0), ("depths", 0), ("tokens", token), ("cache_positions", -1)):
            arrays[name][0] = value
        arrays["probs"][0] = arrays["scores"][0] = 1.0
        arrays["from_text"][:] = 0
        shaping.bins = 0 if tables is None else len(tables[0])
        given = (expected, *(tables or (None,) * 3), *(token_costs or (None,) * 2))
        least = ((0,), (1,), (TABLES, shaping.bins), (2,), (shaping.max_size + 1,), (0,))
        names = ("expected", "centres", "values", "mass_edges", "step", "draft")
        for name, array, shape in zip(names, given, least, strict=True):
            if array is not None and not (len(array) >= shape[0] and array.shape[1:] == shape[1:]):
                raise ValueError(f"{name}: found shape {list(array.shape)}, expected at least {list(shape)}")
            self._keep(name, None if array is None else np.ascontiguousarray(array, np.float64))

    def look_up(
        self,
        text: tuple[int, int | None, int],
        *,
        least_score: float,
        most_sure: float,
        both: tuple[float, ...],
        beside: tuple[float, ...],
    ) -> None:
        """Have the tree begin with looked-up nodes, as `decoding.growing.running_lookup` does, after `begin`.

        Args:
            text: addresses of the text under way, of the index behind it (None for none) and of its trees' buffers.
            least_score, most_sure, both, beside: the constants of that module.
        """
        shaping = self._shaping
        shaping.text, shaping.store, shaping.looked_up = text
        shaping.least_score, shaping.most_sure = least_score, most_sure
        shaping.both[:], shaping.beside[:] = both, beside
        self.most_draws = 2 * self.most_read * shaping.branch
        compiled().tree_start(self.address)

    def make_rows(self, vocab: int) -> None:
        """Allocate `rows` for a vocabulary; a second call changes nothing."""
        if self.rows is None:
            if vocab < self._shaping.branch:
                raise ValueError(f"found {self._shaping.branch} children of one node, expected at most {vocab} tokens")
            self.rows = torch.empty(self.most_read, vocab, dtype=torch.float32)
            self._shaping.rows, self._shaping.vocab = self.rows.data_ptr(), vocab
            if self._shaping.top_p < 1.0 or self._shaping.top_k:
                self.first_rows = torch.empty_like(self.rows)
                self._shaping.first_rows = self.first_rows.data_ptr()

    def check_frontiers(self, count: int) -> None:
        """Raise ValueError unless the buffers hold what so many passes read."""
        if 1 + (count - 1) * self._shaping.beam > self.most_read:
            raise ValueError(f"found {count} passes of {self._shaping.beam}, expected at most {self.most_read} nodes")

    def check_reading(self) -> None:
        """Raise ValueError unless `begin` was given what choosing the nodes of a pass reads."""
        shaping, costs, ranks = self._shaping, self._arrays["draft"], len(self._arrays["expected"])
        if ranks < shaping.branch and (shaping.sampled or costs is not None):
            raise ValueError(f"expected: found {ranks} chances, expected one for each of {shaping.branch} ranks")
        if costs is not None and len(costs) <= shaping.beam:
            raise ValueError(f"draft: found costs of {len(costs)} widths, expected those of 0 to {shaping.beam}")

    def frontier(self) -> int:
        """Choose the nodes of the next pass; return how many, 0 when the tree is complete."""
        shaping = self._shaping
        if shaping.max_depth <= 0:  # nothing is read, and nothing was given for it
            return 0
        self.check_reading()
        if shaping.read and shaping.read + shaping.beam > self.most_read:
            raise ValueError(f"found {shaping.read} nodes read, expected at most {self.most_read} of one tree")
        return compiled().tree_frontier(self.address)

    def request(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids and positions int64 [w] and the mask float32 [w, nodes read] of a pass that is not the first."""
        width = self._shaping.width
        stop = self._shaping.read + width
        return self._ids[:width], self._positions[:width], self._mask[: width * stop].view(width, stop)

    def read(self, logits: torch.Tensor) -> int | None:
        """Take the logits after the frontier, float32 [w, V] -> how many tokens `draw` is to draw after each node.

        Returns:
            0 when nothing is to be drawn; None when logits are not finite.
        """
        self.make_rows(logits.shape[1])
        if not sampling_ops.supports(logits) or logits.shape != (self._shaping.width, self._shaping.vocab):
            raise ValueError(
                f"found logits {logits.dtype} {list(logits.shape)}, expected float32 "
                f"{[self._shaping.width, self._shaping.vocab]} on cpu"
            )
        found = compiled().tree_read(self.address, logits.data_ptr(), logits.stride(0))
        _granted(found)
        return None if found == -1 else found

    def draw(self, ranks: int, generator: torch.Generator) -> None:
        """Draw so many tokens after each node of the frontier, and add the children whose gain is enough."""
        most = min(2 * self._shaping.branch, self._shaping.vocab)
        if not 1 <= ranks <= most:
            raise ValueError(f"found {ranks} tokens to draw after each node, expected 1 to {most}")
        uniforms = None
        if self._shaping.draws:
            uniforms = torch.rand(self._shaping.width, ranks, dtype=torch.float64, generator=generator)
        _granted(compiled().tree_draw(self.address, None if uniforms is None else uniforms.data_ptr(), ranks))

    def kept(self) -> tuple[np.ndarray, ...]:
        """Leave out nodes that gain less than they cost.

        Returns:
            The columns of `expansion.Nodes`, views of buffers, numbered breadth-first as a `TokenTree` has them.
        """
        size = compiled().tree_kept(self.address)
        columns = ("parents", "ranks", "depths", "tokens", "probs", "scores", "cache_positions", "from_text")
        return tuple(self._arrays[name][:size] for name in columns)

    def description(self, size: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
        """Return each node's first child and number of children in the kept tree, int64 [n], and the tree's mask.

        The mask is float32 [n, n], 0 where the node of a row is that of the column or below it, -inf elsewhere. All
        are views of buffers; a node without children has no first.
        """
        mask = torch.from_numpy(self._arrays["sees"][: size * size].reshape(size, size))
        return self._arrays["firsts"][:size], self._arrays["counts"][:size], mask


def _granted(found: int) -> None:
    if found == -3:
        raise ValueError("found a looked-up token that the draft does not have, expected one tokenizer")
    if found == -2:
        raise MemoryError("no memory for a copy of a row")
