"""Trees that grow while they are drafted, using `tree_expansion.c`.

The C code builds the same trees as `top_k_expansion` and `sampled_expansion` in dynamic_trees, in microseconds per pass
instead of a tenth of a millisecond. n = number of nodes so far, w = number of nodes in a pass, k = number of ranks,
V = vocabulary size.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import sampling_ops
from .c_declarations import structure_fields
from .compile_c import FOLDER, load_library

C_SOURCES = ("tree_expansion.c", "sampling_ops.c", "text_index.c")
C_HEADERS = ("tree_expansion.h", "text_index.h")
# Number of tables of acceptance probabilities; tree_expansion.c defines their order.
TABLE_COUNT = 13
NODE_COLUMNS = ("parents", "ranks", "depths", "tokens", "probs", "scores", "cache_positions", "from_text")


class _BuilderFields(ctypes.Structure):
    _fields_ = structure_fields(FOLDER / "tree_expansion.h", "TreeBuilder")


@lru_cache(maxsize=1)
def expansion_kernels() -> Any:
    """Return the functions of `tree_expansion.c`, or None if they cannot be built."""
    return load_library(C_SOURCES, sampling_ops.FLAGS, headers=C_HEADERS)[0]


class TreeBuilder:
    """Grows one tree per step, in buffers that are allocated once per run.

    Args:
        max_size, beam, branch: as in `dynamic_trees.expansion.TreeBounds`.
        most_read: maximum number of nodes that the draft reads per tree.
        top_p, top_k: filters for the distributions from which first children are drawn.

    Attributes:
        address: address of the structure in C.
        most_draws: maximum number of tokens drawn per tree; doubled when text is looked up.
        rows: float32 [most_read, V], the draft's distributions in reading order; None until they are allocated.
        first_rows: float32 [most_read, V], the filtered distributions for first children; None without filters.
    """

    def __init__(
        self, *, max_size: int, beam: int, branch: int, most_read: int, top_p: float = 1.0, top_k: int = 0
    ) -> None:
        self._arrays: dict[str, Any] = {}
        self._fields: Any = _BuilderFields(max_size=max_size, beam=beam, branch=branch, most_read=most_read)
        self._fields.top_p = top_p
        self._fields.top_k = top_k
        self.address = ctypes.addressof(self._fields)
        self.most_read = most_read
        self.most_draws = most_read * branch
        children = beam * branch
        # Space for one frontier's candidates, the retained nodes, and as many newly looked-up nodes.
        nodes = 2 * max_size + children
        for names, size, dtype in (
            ("parents ranks depths tokens cache_positions from_text order other next scratch", nodes, np.int64),
            ("probs scores sorted previous merged expected_falling others", nodes, np.float64),
            ("frontier ids pass_positions", beam, np.int64),
            ("firsts counts", max_size, np.int64),
            ("sees", max_size * max_size, np.float32),
            ("best", children, np.int64),
            # Twice the size, because as many drawn tokens may be skipped as duplicates of looked-up ones.
            ("drawn", 2 * children, np.int64),
            ("best_probs planned", children, np.float64),
            ("drawn_probs", 2 * children, np.float64),
            ("weights totals", beam, np.float64),
            ("pass_mask", beam * most_read, np.float32),
            ("mask", most_read * most_read, np.float32),
        ):
            for name in names.split():
                self._set_array(name, np.empty(size, dtype))
        self._inputs = [torch.from_numpy(self._arrays[name]) for name in ("ids", "pass_positions", "pass_mask")]
        self.rows: Tensor | None = None
        self.first_rows: Tensor | None = None

    def _set_array(self, name: str, array: np.ndarray | None) -> None:
        if array is not None and self._arrays.get(name) is array:
            return
        self._arrays[name] = array
        setattr(self._fields, name, None if array is None else array.__array_interface__["data"][0])

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
        """Start a tree with only its root.

        Args:
            max_depth: depth, in edges from the root, at and below which the draft reads no nodes.
            temperature: temperature of the draft's distributions.
            sampled: whether to expand like `SampledExpansion`, with its `threshold`, instead of `TopKExpansion`.
            draws: whether tokens are drawn; otherwise the most likely tokens are used.
            tables: centres, float64 [b], values, float64 [T, b], and edges of the remaining mass, float64 [2], as in
                `acceptance.calibration`; None to use the draft's probabilities.
            gain: factor for the values of `tables`.
            expected: float64 [k], acceptance probability by rank.
            token_costs: as in `dynamic_trees.expansion.TokenCosts`; None for no cost.
        """
        fields = self._fields
        fields.size = 1
        fields.read = 0
        fields.root_position = root_position
        fields.max_depth = max_depth
        fields.threads = torch.get_num_threads()
        fields.inverse_temperature = sampling_ops.inverse_temperature(temperature)
        fields.sampled = sampled
        fields.draws = draws
        fields.gain = gain
        fields.threshold = threshold
        for name, value in zip(NODE_COLUMNS, (-1, 0, 0, token, 1.0, 1.0, -1), strict=False):
            self._arrays[name][0] = value
        self._arrays["from_text"][:] = 0
        centres, values, mass_edges = tables or (None, None, None)
        step, draft = token_costs or (None, None)
        fields.bins = 0 if centres is None else len(centres)
        for name, array, minimum in (
            ("expected", expected, (0,)),
            ("centres", centres, (1,)),
            ("values", values, (TABLE_COUNT, fields.bins)),
            ("mass_edges", mass_edges, (2,)),
            ("step", step, (fields.max_size + 1,)),
            ("draft", draft, (0,)),
        ):
            if array is not None and not (len(array) >= minimum[0] and array.shape[1:] == minimum[1:]):
                raise ValueError(f"{name}: found shape {list(array.shape)}, expected at least {list(minimum)}")
            self._set_array(name, None if array is None else np.ascontiguousarray(array, np.float64))

    def look_up(
        self,
        addresses: tuple[int, int | None, int],
        *,
        least_score: float,
        max_total: float,
        combined: tuple[float, ...],
        draft_only: tuple[float, ...],
    ) -> None:
        """Start the tree with looked-up nodes, like `dynamic_trees.running_lookup`; call after `begin`.

        Args:
            addresses: addresses of the current text, the index of earlier text (None for none) and the tree buffers.
            least_score, max_total, combined, draft_only: constants of that module.
        """
        fields = self._fields
        fields.text, fields.store, fields.looked_up = addresses
        fields.least_score = least_score
        fields.max_total = max_total
        fields.combined[:] = combined
        fields.draft_only[:] = draft_only
        self.most_draws = 2 * self.most_read * fields.branch
        expansion_kernels().tree_start(self.address)

    def allocate_rows(self, vocab: int) -> None:
        """Allocate `rows` for a vocabulary, on the first call only."""
        if self.rows is not None:
            return
        fields = self._fields
        if vocab < fields.branch:
            raise ValueError(f"found {fields.branch} children per node, expected at most {vocab}, one per token")
        self.rows = torch.empty(self.most_read, vocab, dtype=torch.float32)
        fields.rows = self.rows.data_ptr()
        fields.vocab = vocab
        if fields.top_p < 1.0 or fields.top_k:
            self.first_rows = torch.empty_like(self.rows)
            fields.first_rows = self.first_rows.data_ptr()

    def check_frontiers(self, count: int) -> None:
        """Raise ValueError unless the buffers suffice for `count` passes."""
        beam = self._fields.beam
        if 1 + (count - 1) * beam > self.most_read:
            raise ValueError(f"found {count} passes over {beam} nodes, expected at most {self.most_read} in total")

    def check_reading(self) -> None:
        """Raise ValueError unless `begin` was given enough ranks and costs to choose a pass's nodes."""
        fields = self._fields
        costs = self._arrays["draft"]
        ranks = len(self._arrays["expected"])
        if ranks < fields.branch and (fields.sampled or costs is not None):
            raise ValueError(f"expected: found {ranks} probabilities, expected one for each of {fields.branch} ranks")
        if costs is not None and len(costs) <= fields.beam:
            raise ValueError(f"draft: found costs for {len(costs)} widths, expected widths 0 to {fields.beam}")

    def choose_frontier(self) -> int:
        """Choose the nodes of the next pass and return their number; 0 when the tree is complete."""
        fields = self._fields
        if fields.max_depth <= 0:
            return 0
        self.check_reading()
        if fields.read and fields.read + fields.beam > self.most_read:
            raise ValueError(f"found {fields.read} nodes read, expected at most {self.most_read} per tree")
        return expansion_kernels().tree_frontier(self.address)

    def pass_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a pass's ids and positions, int64 [w], and mask, float32 [w, nodes read]; not for the first pass."""
        width = self._fields.width
        stop = self._fields.read + width
        ids, positions, mask = self._inputs
        return ids[:width], positions[:width], mask[: width * stop].view(width, stop)

    def read_logits(self, logits: Tensor) -> int | None:
        """Read the frontier's logits, float32 [w, V].

        Returns:
            The number of tokens to draw after each node, 0 if none are drawn; None if logits are not finite.
        """
        self.allocate_rows(logits.shape[1])
        expected = (self._fields.width, self._fields.vocab)
        if not sampling_ops.supports(logits) or logits.shape != expected:
            raise ValueError(
                f"found {logits.dtype} logits {list(logits.shape)}, expected float32 {list(expected)} on cpu"
            )
        ranks = expansion_kernels().tree_read(self.address, logits.data_ptr(), logits.stride(0))
        _check_status(ranks)
        return None if ranks == -1 else ranks

    def draw_children(self, ranks: int, generator: torch.Generator) -> None:
        """Draw `ranks` tokens after each node of the frontier and add the children whose gain is sufficient."""
        fields = self._fields
        limit = min(2 * fields.branch, fields.vocab)
        if not 1 <= ranks <= limit:
            raise ValueError(f"found {ranks} tokens to draw after each node, expected 1 to {limit}")
        uniforms = None
        if fields.draws:
            uniforms = torch.rand(fields.width, ranks, dtype=torch.float64, generator=generator)
        address = None if uniforms is None else uniforms.data_ptr()
        _check_status(expansion_kernels().tree_draw(self.address, address, ranks))

    def prune(self) -> tuple[np.ndarray, ...]:
        """Remove nodes that gain less than they cost.

        Returns:
            The columns of `expansion.Nodes` as views of buffers; nodes are numbered breadth-first as in a `TokenTree`.
        """
        size = expansion_kernels().tree_kept(self.address)
        return tuple(self._arrays[name][:size] for name in NODE_COLUMNS)

    def walk_arrays(self, size: int) -> tuple[np.ndarray, np.ndarray, Tensor]:
        """Return each node's first child and number of children in the pruned tree, int64 [n], and the tree mask.

        The mask is float32 [n, n]: 0 where a row's node is the column's node or its descendant, -inf elsewhere. All
        three are views of buffers. The first child of a leaf is arbitrary.
        """
        mask = torch.from_numpy(self._arrays["sees"][: size * size].reshape(size, size))
        return self._arrays["firsts"][:size], self._arrays["counts"][:size], mask


def _check_status(status: int) -> None:
    if status == -3:
        raise ValueError("found a looked-up token outside the draft's vocabulary, expected the draft's tokenizer")
    if status == -2:
        raise MemoryError("not enough memory to copy a row")
