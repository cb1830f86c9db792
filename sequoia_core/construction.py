"""Expected tokens, the exact dynamic program for optimal trees, and the plain shapes they are compared with.

Knows acceptance probabilities and tree shapes, not time: hardware enters in `planning`. Shapes: n = tree size with the
root, d = depth in edges, B = ranks of the acceptance vector.
"""

from __future__ import annotations

import heapq

import numpy as np

from .acceptance import AcceptanceVector
from .tree import TokenTree

MAX_TABLE_CELLS = 2_000_000_000  # n * n * d * B of the dynamic program: about a minute
BLOCK = 64  # sizes handled at once: keeps the (max, +) product inside the processor's cache


def node_scores(tree: TokenTree, acceptance: AcceptanceVector) -> np.ndarray:
    """Return f(v), the probability that node v is accepted: the product of p[rank] along its path (paper §3.1).

    Returns:
        float64 [n]; 1 for the root, 0 below a rank that the vector does not have.
    """
    by_rank = np.zeros(max(len(acceptance.probs), int(tree.child_ranks.max())) + 1)
    by_rank[0] = 1.0
    by_rank[1 : len(acceptance.probs) + 1] = acceptance.probs
    scores = by_rank[tree.child_ranks]
    for level in tree.levels[1:]:
        scores[level] *= scores[tree.parents[level]]
    return scores


def expected_tokens(tree: TokenTree, acceptance: AcceptanceVector) -> float:
    """Return F(T), the tokens one target pass yields on average, bonus token counted (paper Proposition 3.1)."""
    return float(node_scores(tree, acceptance).sum())


def _check(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"{name}: found {value!r}, expected a whole number from {low} to {high}")
    return int(value)


def _is_monotone(probs: np.ndarray) -> bool:
    return bool(np.all(np.diff(probs) <= 0.0))


def expected_tokens_table(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), the largest F over trees of exactly n nodes and at most d edges deep (paper §3.1, Algorithm 1).

    Exact for any vector: best-first when the vector never increases, the dynamic program otherwise. Ranks beyond the
    vector are not used, so a shallow tree can have too few places for n nodes.

    Args:
        max_size: largest n, counting the root.
        max_depth: largest d, in edges.

    Returns:
        float64 [max_size + 1, max_depth + 1], indexed [n, d]; -inf where no such tree exists.

    Raises:
        ValueError: for sizes out of range or a table too large to compute.
    """
    max_size, max_depth = _check("max_size", max_size, 1, 100_000), _check("max_depth", max_depth, 0, 100_000)
    probs = acceptance.probs
    deepest = min(max_depth, max_size - 1)
    table = np.full((max_size + 1, max_depth + 1), -np.inf)
    table[1, :] = 1.0
    if _is_monotone(probs):
        for depth in range(1, deepest + 1):
            scores = _best_first(probs, size=max_size, depth=depth)[2]
            table[1 : len(scores) + 1, depth] = np.cumsum(scores)
    else:
        for depth, by_branches in enumerate(_dynamic_program(probs, max_size, deepest), start=1):
            table[:, depth] = by_branches.max(axis=0)
    table[:, deepest + 1 :] = table[:, [deepest]]
    return table


def optimal_tree(acceptance: AcceptanceVector, *, size: int, depth: int | None = None) -> TokenTree:
    """Return a tree of exactly `size` nodes and at most `depth` edges deep with the largest F.

    Args:
        size: nodes including the root.
        depth: deepest level in edges; None leaves it open.

    Raises:
        ValueError: for sizes out of range, or when no tree of that size fits in that depth.
    """
    size = _check("size", size, 1, 100_000)
    depth = size - 1 if depth is None else min(_check("depth", depth, 0, 100_000), size - 1)
    probs = acceptance.probs
    if _is_monotone(probs):
        parents, ranks, _ = _best_first(probs, size=size, depth=depth)
        if len(parents) == size:
            return TokenTree.from_links(parents, ranks)[0]
    else:
        levels = list(_dynamic_program(probs, size, depth))
        if size == 1 or (levels and levels[-1][:, size].max() > -np.inf):
            return _rebuild(probs, levels, size)
    raise ValueError(
        f"size {size}: found no tree with at most {depth} levels below the root and {len(probs)} ranks per node, "
        f"expected at most {_capacity(len(probs), depth)} nodes"
    )


def best_expected_tokens(tree: TokenTree, acceptance: AcceptanceVector) -> float:
    """Return G at a tree's own size and depth: what the best tree of that shape would yield under `acceptance`.

    Ranks that the tree uses beyond the vector are worth nothing, but may be used by the best tree as well.
    """
    missing = max(0, int(tree.child_ranks.max()) - len(acceptance.probs))
    padded = AcceptanceVector(np.concatenate([acceptance.probs, np.zeros(missing)])) if missing else acceptance
    return expected_tokens(optimal_tree(padded, size=tree.size, depth=tree.depth), padded)


def _capacity(ranks: int, depth: int) -> int:
    return sum(ranks**level for level in range(min(depth, 60) + 1))


def _best_first(probs: np.ndarray, *, size: int, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take the `size` best-scored nodes: optimal when p never increases, since a parent and an elder sibling never
    score less than the node itself.

    Returns:
        parents int [m], ranks int [m] and scores float64 [m] in the order taken; m < size when depth and ranks run out.
    """
    ranks_available = len(probs)
    p = probs.tolist()
    parents, ranks, scores, depths = [-1], [0], [1.0], [0]
    heap: list[tuple[float, int, int, int]] = []  # (-score, tie-break, parent, rank)
    if depth > 0 and ranks_available:
        heap.append((-p[0], 0, 0, 1))
    counter = 1
    while heap and len(parents) < size:
        negative, _, parent, rank = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        scores.append(-negative)
        depths.append(depths[parent] + 1)
        if rank < ranks_available:  # next sibling
            heapq.heappush(heap, (-scores[parent] * p[rank], counter, parent, rank + 1))
        if depths[node] < depth:  # first child
            heapq.heappush(heap, (negative * p[0], counter + 1, node, 1))
        counter += 2
    return np.array(parents), np.array(ranks), np.array(scores)


def _dynamic_program(probs: np.ndarray, max_size: int, max_depth: int):
    """Yield for each depth l = 1 .. max_depth the array T[l] of Algorithm 1.

    T[l][b, m] is the best F of a tree of m nodes, at most l deep, whose root has exactly b children:
    T[l][b, m] = max over y of T[l][b-1, y] + p[b] * max_j T[l-1][j, m-y].

    Yields:
        float64 [B + 1, max_size + 1]; -inf where impossible. No back-pointers: `_rebuild` recomputes the few it needs.
    """
    branches = min(len(probs), max_size - 1)
    if max_size**2 * max_depth * branches > MAX_TABLE_CELLS:
        raise ValueError(
            f"size {max_size}, depth {max_depth} and {branches} ranks: found a table of "
            f"{max_size**2 * max_depth * branches:.1e} steps, expected at most {MAX_TABLE_CELLS:.0e}; "
            "choose smaller bounds, or smooth the vector so that it never increases"
        )
    below = np.full(max_size + 1, -np.inf)  # best over j of T[l-1][j, ·]
    below[1:2] = 1.0
    for _ in range(max_depth):
        best = np.full((branches + 1, max_size + 1), -np.inf)
        best[0, 1:2] = 1.0
        # subtree[y, m] = below[m - y], -inf for m <= y: a sliding view, nothing is copied
        padded = np.concatenate([np.full(max_size, -np.inf), below])
        subtree = np.lib.stride_tricks.sliding_window_view(padded, max_size + 1)[::-1]
        largest = int(np.flatnonzero(below > -np.inf)[-1])  # a child's subtree cannot be larger
        for start in range(2, max_size + 1, BLOCK):
            stop = min(start + BLOCK, max_size + 1)
            table = np.ascontiguousarray(subtree[:stop, start:stop])
            scratch = np.empty_like(table)
            for b in range(1, min(branches, stop - 2) + 1):
                first = max(b, start - largest)  # y holds the root and b - 1 children; the rest is the new child's
                child, work = table[first:], scratch[first:]
                if probs[b - 1] > 0.0:
                    np.multiply(child, probs[b - 1], out=work)
                else:  # 0 * -inf is NaN: a worthless child still has to be possible
                    np.copyto(work, np.where(np.isneginf(child), -np.inf, 0.0))
                work += best[b - 1, first:stop, None]
                np.maximum.reduce(work, axis=0, out=best[b, start:stop])
        yield best
        below = best.max(axis=0)


def _rebuild(probs: np.ndarray, levels: list[np.ndarray], size: int) -> TokenTree:
    """Read one optimal tree off the tables T[1..d], asking at each node how its size is shared among its children."""
    parents, ranks = [-1], [0]
    todo = [(0, len(levels), size)]  # (node, depth left, size of its subtree)
    while todo:
        node, left, m = todo.pop()
        if m == 1:
            continue
        table = levels[left - 1]
        b = int(table[:, m].argmax())
        below = levels[left - 2].max(axis=0) if left > 1 else np.where(np.arange(len(table[0])) == 1, 1.0, -np.inf)
        while b > 0:
            y = np.arange(1, m)
            child_value = below[m - y]
            gain = np.where(np.isneginf(child_value), -np.inf, probs[b - 1] * np.maximum(child_value, 0.0))
            y_best = int(y[(table[b - 1, 1:m] + gain).argmax()])
            parents.append(node)
            ranks.append(b)
            todo.append((len(parents) - 1, left - 1, m - y_best))
            m, b = y_best, b - 1
    return TokenTree.from_links(np.array(parents), np.array(ranks))[0]


# ---- plain shapes to compare with


def chain_tree(length: int) -> TokenTree:
    """Return one chain of `length` drafted tokens (Leviathan et al.): n = length + 1, d = length."""
    return independent_chains(1, length)


def chain_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - p1), the tokens per step that no chain exceeds; inf when the first choice is always accepted."""
    return float(1.0 / (1.0 - acceptance.probs[0])) if acceptance.probs[0] < 1.0 else float("inf")


def independent_chains(count: int, length: int) -> TokenTree:
    """Return `count` chains of `length` tokens that share only the root (SpecInfer's k x l tree)."""
    return branching_tree([count, *[1] * (length - 1)] if length else [])


def branching_tree(branching: list[int]) -> TokenTree:
    """Return the tree whose every node at level i has `branching[i]` children (a fixed expansion, or a beam).

    Raises:
        ValueError: for a factor below 1 or more than 100,000 nodes.
    """
    parents, level = [np.array([-1])], np.array([0])
    for factor in branching:
        _check("branching", factor, 1, 100_000)
        if len(level) * factor > 100_000:
            raise ValueError(f"branching: found {branching}, expected at most 100000 nodes")
        parents.append(np.repeat(level, factor))
        level = level[-1] + 1 + np.arange(len(level) * factor)
    return TokenTree(np.concatenate(parents))


def k_ary_tree(k: int, depth: int) -> TokenTree:
    """Return the complete k-ary tree of that depth."""
    return branching_tree([k] * depth)
