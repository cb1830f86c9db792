"""Expected tokens of a tree, and the best tree of every size. n = number of nodes, d = depth in edges, B = ranks.

Best-first search is exact if probabilities never increase with rank; the dynamic program always is. Both take `rows`,
float64 [L, B]: `rows[l - 1]` contains the probabilities of the B ranks below a node with l levels left.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..acceptance.matrix import AcceptanceMatrix
from ..acceptance.vector import AcceptanceVector
from .tree import TokenTree

Acceptance = AcceptanceVector | AcceptanceMatrix

MAX_NODES = 100_000
MAX_GROWN = 20_000_000  # limit on nodes added best-first for one table; adding them takes about a minute
MAX_CELLS = 5_000_000  # limit on entries in a table of G(n, d): 38 MiB in memory, ten times that as JSON
MAX_PROGRAM_STEPS = 10_000_000_000  # limit on n * n * d * B; the largest program takes a few seconds
SEARCHABLE_SIZE = 256  # size of the largest tree for which the search is fast with any vector
CACHE_CELLS = 131_072  # limit on entries in one group of levels; their 1 MB fits into the processor's cache


def node_scores(tree: TokenTree, acceptance: Acceptance) -> np.ndarray:
    """Return f(v), float64 [n], the probability that node v is accepted: the product of p[rank] along its path."""
    levels, ranks = acceptance.levels.shape
    table = np.zeros((levels, ranks + 2))  # columns: root, ranks, ranks beyond the vector; faster than np.pad
    table[:, 1:-1] = acceptance.levels
    rows = np.clip(tree.depths - 1, 0, levels - 1)
    probs = table[rows, np.minimum(tree.child_ranks, ranks + 1)].tolist()
    scores = [1.0]
    for prob, parent in zip(probs[1:], tree.parents[1:].tolist(), strict=True):
        scores.append(prob * scores[parent])
    return np.array(scores)


def expected_tokens(tree: TokenTree, acceptance: Acceptance) -> float:
    """Return F(T), the expected tokens per target pass, including the bonus token (paper, Proposition 3.1)."""
    return float(node_scores(tree, acceptance).sum())


def describe_unmeasured_ranks(tree: TokenTree, acceptance: Acceptance) -> str | None:
    """Return a warning if a tree has nodes whose rank is beyond the end of the vector; None if it has no such nodes."""
    measured = len(acceptance)
    beyond = int((tree.child_ranks > measured).sum())
    if not beyond:
        return None
    last = int(tree.child_ranks.max())
    ranks = f"Rank {last} was" if last == measured + 1 else f"Ranks {measured + 1} to {last} were"
    return f"{ranks} never measured: {beyond} of {tree.size} nodes have such a rank and are never accepted."


def check_whole_number(name: str, value: int, low: int, high: int) -> int:
    """Return a value after checking that it is a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"{name}: found {value!r}, expected a whole number from {low} to {high}")
    return int(value)


def check_shape(size: int, depth: int | None) -> tuple[int, int]:
    """Return a tree's size and maximum depth after checking their bounds; None for the depth means unlimited."""
    size = check_whole_number("size", size, 1, MAX_NODES)
    return size, size - 1 if depth is None else min(check_whole_number("depth", depth, 0, MAX_NODES), size - 1)


def rows_by_levels_left(acceptance: Acceptance, depth: int) -> np.ndarray:
    """Return the probabilities of each rank below a node with 1 to `depth` levels left, float64 [depth, B]."""
    if len(acceptance.levels) == 1:  # a view, to avoid copying the vector for every level
        return np.broadcast_to(acceptance.levels, (depth, len(acceptance)))
    return acceptance.levels[np.minimum(np.arange(depth)[::-1], len(acceptance.levels) - 1)]


def is_monotone(acceptance: Acceptance) -> bool:
    """Return whether no rank is more likely than the one before it, in which case best-first search is exact."""
    return bool(np.all(np.diff(acceptance.levels, axis=-1) <= 0.0))


def dynamic_program(rows: np.ndarray, max_size: int) -> Iterator[np.ndarray]:
    """Yield the table T[l] of Algorithm 1 for each number of levels l = 1 .. L, float64 [max_size + 1, B + 1].

    T[l][m, b] is the largest F of a tree with m nodes that is at most l levels deep and whose root has exactly b
    children, or -inf if there is none: T[l][m, b] = max over y of T[l][y, b-1] + p[b] * max_j T[l-1][m-y, j].

    Values depend only on those for smaller sizes, at the same level and the one below, so all ranks of several levels
    are computed at once, size by size. No back-pointers are stored: `rebuild` recomputes the few that it needs.
    """
    levels = len(rows)
    ranks = min(rows.shape[1], max_size - 1)
    per_level = max_size**2 * max(ranks, 1)
    below = _single_node(max_size)  # maximum over j of T[l-1][·, j]
    group = max(1, CACHE_CELLS // ((ranks + 1) * (max_size + 1)))
    for start in range(0, levels, group):
        stop = min(start + group, levels)
        if stop * per_level > MAX_PROGRAM_STEPS:
            raise ValueError(
                f"size {max_size}, {levels} levels and {ranks} ranks take more than {MAX_PROGRAM_STEPS:.0e} steps; "
                "choose smaller bounds, or smooth the vector so that it never increases"
            )
        tables = _group(rows[start:stop, :ranks], below, max_size)
        yield from tables.transpose(1, 0, 2)
        below = tables[:, -1].max(axis=1)


def _group(rows: np.ndarray, below: np.ndarray, max_size: int) -> np.ndarray:
    """Return T for consecutive levels, float64 [max_size + 1, levels, B + 1], given the largest F one level below."""
    levels, ranks = rows.shape
    table = np.full((max_size + 1, levels, ranks + 1), -np.inf)
    table[1, :, 0] = 1.0
    # gain[max_size - j, l, b - 1] = p[b] * (best F of a child's subtree of j nodes). Sizes are stored in reverse so
    # that the sum over y runs forward through both arrays. The last column stays -inf, because no rank follows.
    gain = np.full_like(table, -np.inf)
    possible = np.flatnonzero(below > -np.inf)
    gain[max_size - possible, 0, :ranks] = below[possible, None] * rows[0]
    gain[max_size - 1, :, :ranks] = rows
    flat = table.reshape(max_size + 1, -1)
    flat_gain = gain.reshape(max_size + 1, -1)
    sums = np.empty_like(flat)
    grown = np.empty(flat.shape[1])
    by_level = grown.reshape(levels, ranks + 1)
    upper_rows = rows[1:]
    worthless = upper_rows == 0.0
    any_worthless = bool(worthless.any())
    with np.errstate(invalid="ignore" if any_worthless else None):
        for size in range(2, max_size + 1):
            work = np.add(flat[1:size], flat_gain[max_size - size + 1 : max_size], out=sums[: size - 1])
            np.maximum.reduce(work, axis=0, out=grown)
            table[size, :, 1:] = by_level[:, :ranks]
            if levels > 1:
                best = np.maximum.reduce(by_level[:-1], axis=1, keepdims=True)
                added = np.multiply(upper_rows, best, out=gain[max_size - size, 1:, :ranks])
                if any_worthless:  # 0 * -inf is NaN, but a child with probability 0 must remain possible
                    np.copyto(added, np.where(np.isneginf(best), -np.inf, 0.0), where=worthless)
    return table


def _single_node(max_size: int) -> np.ndarray:
    """Return the largest F for each size if no levels are left, float64 [max_size + 1]."""
    values = np.full(max_size + 1, -np.inf)
    values[1] = 1.0
    return values


def rebuild(rows: np.ndarray, tables: list[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Trace an optimal tree of `size` nodes back from T[1..L]; return its parents and ranks, int [n], parents first."""
    best = [_single_node(len(tables[0]) - 1), *(table.max(axis=1) for table in tables)]
    parents = [-1]
    ranks = [0]
    todo = [(0, len(tables), size)]  # (node, levels left, size of its subtree)
    while todo:
        node, left, m = todo.pop()
        if m == 1:
            continue
        table = tables[left - 1]
        below = best[left - 1]
        b = int(table[m].argmax())
        while b > 0:
            child_value = below[m - 1 : 0 : -1]  # best F of a subtree of m - y nodes, for y = 1 .. m - 1
            gain = np.where(np.isneginf(child_value), -np.inf, rows[left - 1, b - 1] * np.maximum(child_value, 0.0))
            y = 1 + int((table[1:m, b - 1] + gain).argmax())
            parents.append(node)
            ranks.append(b)
            todo.append((len(parents) - 1, left - 1, m - y))
            m, b = y, b - 1
    return np.array(parents), np.array(ranks)


class Grown(NamedTuple):
    """Nodes in the order in which they were added, parents and elder siblings first; int [m], scores float64 [m]."""

    parents: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    depths: np.ndarray


def best_first(rows: np.ndarray, size: int) -> Grown:
    """Grow a tree by repeatedly adding the highest-scoring node whose parent and elder sibling are in the tree.

    The tree has fewer than `size` nodes if levels and ranks run out. It is optimal if no row increases, because then a
    parent or an elder sibling never scores less than the node itself.
    """
    depth, ranks_available = rows.shape
    # by_depth[d] has the probabilities below a node at depth d. A vector's rows are views of one row, converted once.
    by_depth = [rows[0].tolist()] * depth if depth and rows.strides[0] == 0 else rows[::-1].tolist()
    parents = [-1]
    ranks = [0]
    scores = [1.0]
    depths = [0]
    heap: list[tuple[float, int, int, int]] = []  # (-score, tie-break, parent, rank)
    if depth > 0 and ranks_available:
        heap.append((-by_depth[0][0], 0, 0, 1))
    counter = 1
    while heap and len(parents) < size:
        negative, _, parent, rank = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        scores.append(-negative)
        depths.append(depths[parent] + 1)
        if rank < ranks_available:  # next sibling
            heapq.heappush(heap, (-scores[parent] * by_depth[depths[parent]][rank], counter, parent, rank + 1))
        if depths[node] < depth:  # first child
            heapq.heappush(heap, (negative * by_depth[depths[node]][0], counter + 1, node, 1))
        counter += 2
    return Grown(*map(np.array, (parents, ranks, scores, depths)))


def expected_tokens_table(acceptance: Acceptance, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), the largest F of a tree with exactly n nodes and at most d edges deep (paper §3.1, Algorithm 1).

    Exact for any vector or matrix: uses best-first search if ranks never increase, otherwise the dynamic program.

    Args:
        max_size: largest n, including the root.
        max_depth: largest d, in edges.

    Returns:
        float64 [max_size + 1, max_depth + 1], indexed [n, d]; -inf where no such tree exists.
    """
    if is_monotone(acceptance):
        return table_from_grown(grow_to_depths(acceptance, max_size, max_depth), max_size, max_depth)
    return table_from_programs(solve_to_depths(acceptance, max_size, max_depth), max_size, max_depth)


def solve_to_depths(acceptance: Acceptance, max_size: int, max_depth: int) -> Iterator[np.ndarray]:
    """Return the last table of `dynamic_program` for depths d = 1, 2, …, until deeper trees are no better.

    A vector needs a single dynamic program; a matrix, whose rows differ by depth, needs one for each d.
    """
    _check_bounds(max_size, max_depth)
    deepest = min(max_depth, max_size - 1)
    if len(acceptance.levels) == 1:
        return _until_settled(dynamic_program(rows_by_levels_left(acceptance, deepest), max_size), max_size)
    by_depth = (rows_by_levels_left(acceptance, depth) for depth in range(1, deepest + 1))
    return (list(dynamic_program(rows, max_size))[-1] for rows in by_depth)


def table_from_programs(tables: Iterable[np.ndarray], max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d) from the result of `solve_to_depths`, float64 [max_size + 1, max_depth + 1]."""
    return _by_depth((table[1:].max(axis=1) for table in tables), max_size, max_depth)


def grow_to_depths(acceptance: Acceptance, max_size: int, max_depth: int) -> list[Grown]:
    """Grow trees best-first to depths d = 1, 2, …, until deeper trees are no better; ranks must never increase.

    The first n nodes of each tree are the best tree of n nodes.
    """
    _check_bounds(max_size, max_depth)
    trees: list[Grown] = []
    for depth in range(1, min(max_depth, max_size - 1) + 1):
        if depth * max_size > MAX_GROWN:
            raise ValueError(
                f"max_depth: found {max_depth} for trees of up to {max_size} nodes, expected at most "
                f"{MAX_GROWN // max_size}; with this vector, deeper trees continue to improve"
            )
        grown = best_first(rows_by_levels_left(acceptance, depth), max_size)
        if grown.depths.max() < depth:
            break
        trees.append(grown)
    return trees


def table_from_grown(trees: Iterable[Grown], max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d) from the result of `grow_to_depths`, float64 [max_size + 1, max_depth + 1]."""
    return _by_depth((np.cumsum(grown.scores) for grown in trees), max_size, max_depth)


def _by_depth(best: Iterable[np.ndarray], max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d) from its values at n = 1, 2, … for each d = 1, 2, …; larger d repeat the last values."""
    table = np.full((max_size + 1, max_depth + 1), -np.inf)
    table[1, :] = 1.0
    for depth, values in enumerate(best, start=1):
        table[1 : len(values) + 1, depth:] = values[:, None]
    return table


def _check_bounds(max_size: int, max_depth: int) -> None:
    check_whole_number("max_size", max_size, 1, MAX_NODES)
    check_whole_number("max_depth", max_depth, 0, MAX_NODES)
    check_cells(max_size, max_depth)


def check_cells(max_size: int, max_depth: int, tables: int = 1) -> None:
    """Raise ValueError if tables of G(n, d) would be too large."""
    cells = tables * (max_size + 1) * (max_depth + 1)
    if cells > MAX_CELLS:
        raise ValueError(
            f"max_size {max_size} and max_depth {max_depth}: found {cells:,} table entries, expected at most "
            f"{MAX_CELLS:,}; choose smaller bounds"
        )


def optimal_tree(
    acceptance: Acceptance, *, size: int, depth: int | None = None, tables: Iterable[np.ndarray] | None = None
) -> TokenTree:
    """Return a tree with the largest F among those with exactly `size` nodes that are at most `depth` edges deep.

    Args:
        tables: result of `solve_to_depths` for at least this size and depth; None to compute it.
    """
    size, depth = check_shape(size, depth)
    rows = rows_by_levels_left(acceptance, depth)
    parents = np.array([-1])
    ranks = np.array([0])
    if is_monotone(acceptance):
        parents, ranks, *_ = best_first(rows, size)
    elif depth > 0:
        levels = dynamic_program(rows, size) if tables is None else islice(tables, depth)
        used = list(_until_settled(levels, size) if len(acceptance.levels) == 1 else levels)
        if used[-1][size].max() > -np.inf:
            parents, ranks = rebuild(rows, used, size)
    if len(parents) == size:
        return TokenTree.from_links(parents, ranks)[0]
    largest = sum(len(acceptance) ** level for level in range(min(depth, 60) + 1))
    raise ValueError(
        f"size {size}: found no tree with at most {depth} levels below the root and {len(acceptance)} ranks per node, "
        f"expected at most {largest} nodes"
    )


def _until_settled(tables: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield tables of the dynamic program until one more level changes nothing for trees of up to `size` nodes."""
    before = None
    for table in tables:
        yield table
        best = table[: size + 1].max(axis=1)
        if before is not None and np.array_equal(best, before):
            return
        before = best


def best_expected_tokens(tree: TokenTree, acceptance: Acceptance) -> float:
    """Return G(n, d) for a tree's size and depth; ranks beyond the vector have probability 0."""
    missing = max(0, int(tree.child_ranks.max()) - len(acceptance))
    padded = AcceptanceMatrix(np.pad(acceptance.levels, ((0, 0), (0, missing)))) if missing else acceptance
    if is_monotone(padded):  # only the value is needed, so do not build the tree
        return float(best_first(rows_by_levels_left(padded, tree.depth), tree.size).scores.sum())
    return expected_tokens(optimal_tree(padded, size=tree.size, depth=tree.depth), padded)
