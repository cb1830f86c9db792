"""The two searches behind optimal trees: the exact dynamic program, and best-first for ranks that never increase.

`rows` float64 [L, B]: `rows[l - 1]` are the probabilities of the B ranks below a node that has l levels left, so the
same row l times for an acceptance vector. N = largest tree size with the root.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MAX_STEPS = 10_000_000_000  # n * n * d * B: a few seconds
REACH = 256  # largest tree that can be searched for every vector
CACHE_CELLS = 131_072  # numbers of one group of levels: 1 MB stays in the processor's cache


def dynamic_program(rows: np.ndarray, max_size: int) -> Iterator[np.ndarray]:
    """Yield for each number of levels l = 1 .. L the table T[l] of Algorithm 1, float64 [max_size + 1, B + 1].

    T[l][m, b] is the best F of a tree of m nodes, at most l levels deep, whose root has exactly b children, -inf where
    impossible: T[l][m, b] = max over y of T[l][y, b-1] + p[b] * max_j T[l-1][m-y, j].

    A size needs only smaller sizes, of its own level and of the one below, so all ranks of several levels are computed
    at once, size by size. No back-pointers: `rebuild` recomputes the few it needs.
    """
    levels, ranks = len(rows), min(rows.shape[1], max_size - 1)
    per_level = max_size**2 * max(ranks, 1)
    below = single_node(max_size)  # best over j of T[l-1][·, j]
    group = max(1, CACHE_CELLS // ((ranks + 1) * (max_size + 1)))
    for start in range(0, levels, group):
        stop = min(start + group, levels)
        if stop * per_level > MAX_STEPS:
            raise ValueError(
                f"size {max_size}, {levels} levels and {ranks} ranks: found more than {MAX_STEPS:.0e} steps, expected "
                "fewer; choose smaller bounds, or smooth the vector so that it never increases"
            )
        tables = _group(rows[start:stop, :ranks], below, max_size)
        yield from tables.transpose(1, 0, 2)
        below = tables[:, -1].max(axis=1)


def _group(rows: np.ndarray, below: np.ndarray, max_size: int) -> np.ndarray:
    """Return T of consecutive levels, float64 [max_size + 1, levels, B + 1], given the best values below the first."""
    levels, ranks = rows.shape
    table = np.full((max_size + 1, levels, ranks + 1), -np.inf)
    table[1, :, 0] = 1.0
    # gain[max_size - j, l, b - 1] = p[b] * (best value of a child's subtree of j nodes): stored backwards, so that a
    # size's sum over y runs forward through both arrays; the last column stays -inf, no rank follows the last.
    gain = np.full_like(table, -np.inf)
    possible = np.flatnonzero(below > -np.inf)
    gain[max_size - possible, 0, :ranks] = below[possible, None] * rows[0]
    gain[max_size - 1, :, :ranks] = rows
    flat, flat_gain = table.reshape(max_size + 1, -1), gain.reshape(max_size + 1, -1)
    sums, grown = np.empty_like(flat), np.empty(flat.shape[1])
    by_level = grown.reshape(levels, ranks + 1)
    upper_rows, worthless = rows[1:], rows[1:] == 0.0
    any_worthless = bool(worthless.any())
    with np.errstate(invalid="ignore" if any_worthless else None):
        for size in range(2, max_size + 1):
            work = np.add(flat[1:size], flat_gain[max_size - size + 1 : max_size], out=sums[: size - 1])
            np.maximum.reduce(work, axis=0, out=grown)
            table[size, :, 1:] = by_level[:, :ranks]
            if levels > 1:
                best = np.maximum.reduce(by_level[:-1], axis=1, keepdims=True)
                added = np.multiply(upper_rows, best, out=gain[max_size - size, 1:, :ranks])
                if any_worthless:  # 0 * -inf is NaN, but a child of probability 0 still has to be possible
                    np.copyto(added, np.where(np.isneginf(best), -np.inf, 0.0), where=worthless)
    return table


def single_node(max_size: int) -> np.ndarray:
    """Return the best F by size with no level left, float64 [max_size + 1]."""
    values = np.full(max_size + 1, -np.inf)
    values[1] = 1.0
    return values


def rebuild(rows: np.ndarray, tables: list[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Read one optimal tree of `size` nodes off T[1..L]: parents and ranks int [n], parents before children."""
    best = [single_node(len(tables[0]) - 1), *(table.max(axis=1) for table in tables)]
    parents, ranks = [-1], [0]
    todo = [(0, len(tables), size)]  # (node, levels left, size of its subtree)
    while todo:
        node, left, m = todo.pop()
        if m == 1:
            continue
        table, below = tables[left - 1], best[left - 1]
        b = int(table[m].argmax())
        while b > 0:
            child_value = below[m - 1 : 0 : -1]  # of m - y nodes, for y = 1 .. m - 1
            gain = np.where(np.isneginf(child_value), -np.inf, rows[left - 1, b - 1] * np.maximum(child_value, 0.0))
            y = 1 + int((table[1:m, b - 1] + gain).argmax())
            parents.append(node)
            ranks.append(b)
            todo.append((len(parents) - 1, left - 1, m - y))
            m, b = y, b - 1
    return np.array(parents), np.array(ranks)


class Grown(NamedTuple):
    """Nodes in the order taken, parents and elder siblings first: int [m] each, scores float64 [m]."""

    parents: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    depths: np.ndarray


def best_first(rows: np.ndarray, size: int) -> Grown:
    """Grow greedily: take the best-scored node whose parent and elder sibling are in the tree, `size` times.

    m < size when levels and ranks run out. Optimal when no row increases: then a parent and an elder sibling never
    score less than the node itself.
    """
    depth, ranks_available = rows.shape
    # by_depth[d]: ranks below a node of depth d; a vector's rows are one row seen many times, so it is listed once
    by_depth = [rows[0].tolist()] * depth if depth and rows.strides[0] == 0 else rows[::-1].tolist()
    parents, ranks, scores, depths = [-1], [0], [1.0], [0]
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
