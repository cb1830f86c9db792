"""The best trees of every size and depth, from one search. N = largest size, including the root; D = largest depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..acceptance.bootstrap import TABLE_RESAMPLES
from ..acceptance.vector import AcceptanceVector
from ..acceptance.what_if import isotonic
from .optimal import (
    SEARCHABLE_SIZE,
    Grown,
    check_cells,
    expected_tokens_table,
    grow_to_depths,
    is_monotone,
    optimal_tree,
    solve_to_depths,
    table_from_grown,
    table_from_programs,
)
from .replay import replay_while_growing
from .tree import TokenTree

REPLAYED_SIZES = 24  # largest number of sizes replayed at each depth


@dataclass(frozen=True, slots=True, eq=False)
class GrownTrees:
    """Expected tokens and draft widths of the best tree of each size n that is at most d edges deep, indexed [n, d].

    Attributes:
        tokens: float64 [N + 1, D + 1], G(n, d); -inf where no such tree exists.
        correction: float64 [N + 1, D + 1], tokens per step on measured texts divided by G(n, d); 1 without texts.
        widths: int64 [N + 1, D + 1, D], nodes in each draft pass: `widths[n, d, l]` is the number of nodes at depth l
            that have children; undefined where no such tree exists.
        grown: result of `grow_to_depths`.
        tables: result of `solve_to_depths` if some rank is more likely than the one before it, otherwise empty.
    """

    acceptance: AcceptanceVector
    tokens: np.ndarray
    correction: np.ndarray
    widths: np.ndarray
    grown: Sequence[Grown]
    tables: Sequence[np.ndarray]

    def tree(self, size: int, depth: int) -> TokenTree:
        """Return the same tree as `optimal_tree` of this size and maximum depth, but without a search."""
        if self.tables or size == 1:
            tables = self.tables if len(self.acceptance.levels) == 1 else None
            return optimal_tree(self.acceptance, size=size, depth=depth, tables=tables)
        grown = self.grown[min(depth, len(self.grown)) - 1]
        return TokenTree.from_links(grown.parents[:size], grown.ranks[:size])[0]


def grow_best_trees(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> GrownTrees:
    """Find the best trees of up to `max_size` nodes that are at most `max_depth` edges deep.

    If some rank is more likely than the one before it, G(n, d) is still exact, but `widths` and `correction` are
    computed for the closest vector whose ranks never increase.
    """
    tables: list[np.ndarray] = []
    if is_monotone(acceptance):
        grown = grow_to_depths(acceptance, max_size, max_depth)
        tokens = table_from_grown(grown, max_size, max_depth)
    else:
        tables = list(solve_to_depths(acceptance, max_size, max_depth))
        tokens = table_from_programs(tables, max_size, max_depth)
        grown = grow_to_depths(isotonic(acceptance), max_size, max_depth)
    widths = _widths(grown, max_size, max_depth)
    correction = _text_correction(grown, tokens.shape, acceptance)
    return GrownTrees(acceptance, tokens, correction, widths, grown, tables)


def _widths(trees: Sequence[Grown], max_size: int, max_depth: int) -> np.ndarray:
    widths = np.zeros((max_size + 1, max_depth + 1, max_depth), dtype=np.int64)
    for depth, grown in enumerate(trees, start=1):
        size = len(grown.parents)
        # A node joins its level's draft pass when its first child is added.
        joined = np.zeros((size, depth), dtype=np.int64)
        first_children = np.flatnonzero(grown.ranks == 1)
        joined[first_children, grown.depths[first_children] - 1] = 1
        widths[1 : size + 1, depth:, :depth] = joined.cumsum(axis=0)[:, None]
    return widths


def _text_correction(trees: Sequence[Grown], shape: tuple[int, ...], acceptance: AcceptanceVector) -> np.ndarray:
    correction = np.ones(shape)
    largest = shape[0] - 1
    sizes = np.unique(np.geomspace(1, largest, REPLAYED_SIZES).round().astype(int))
    for depth, grown in enumerate(trees, start=1):
        replayed = sizes[sizes <= len(grown.parents)]
        texts = replay_while_growing(grown.parents, grown.ranks, replayed.tolist(), acceptance)
        if texts is None:
            break
        ratio = [text.tokens_per_step for text in texts] / grown.scores.cumsum()[replayed - 1]
        correction[1:, depth:] = np.interp(np.arange(1, largest + 1), replayed, ratio)[:, None]
    return correction


def searchable_table(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), float64 [max_size + 1, max_depth + 1]; NaN for sizes whose search is too slow."""
    try:
        return expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth)
    except ValueError:
        if max_size <= SEARCHABLE_SIZE:
            raise
        table = np.full((max_size + 1, max_depth + 1), np.nan)
        table[: SEARCHABLE_SIZE + 1] = expected_tokens_table(acceptance, max_size=SEARCHABLE_SIZE, max_depth=max_depth)
        return table


def bootstrap_tables(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> np.ndarray | None:
    """Return G(n, d) for r resampled vectors, float64 [r, max_size + 1, max_depth + 1]; None without a sample.

    The tree is optimized anew for each resample, so the spread accounts for the choice of tree.
    """
    check_cells(max_size, max_depth, TABLE_RESAMPLES)
    vectors = acceptance.resamples(TABLE_RESAMPLES)
    if vectors is None:
        return None
    return np.array([expected_tokens_table(v, max_size=max_size, max_depth=max_depth) for v in vectors])


def next_node_value(table: np.ndarray, *, size: int, depth: int) -> float | None:
    """Return G(n + 1, d) - G(n, d) from a table [N + 1, D + 1]; None if either value is missing or -inf."""
    if size + 1 >= len(table) or depth >= table.shape[1]:
        return None
    gain = float(table[size + 1, depth] - table[size, depth])
    return gain if np.isfinite(gain) else None
