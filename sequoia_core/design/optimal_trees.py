"""Expected tokens, optimal trees of every size and depth, and the plain shapes they are compared with.

Knows acceptance probabilities and tree shapes, not time: hardware enters in `planning`. An `AcceptanceMatrix` may stand
in for an `AcceptanceVector`. Shapes: n = tree size with the root, d = depth in edges, B = ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .acceptance import AcceptanceMatrix, AcceptanceVector
from .tree import TokenTree
from .tree_search import best_first, dynamic_program, rebuild

Acceptance = AcceptanceVector | AcceptanceMatrix

MAX_NODES = 100_000
MAX_GROWN = 20_000_000  # nodes grown best-first for one table: a minute
MAX_CELLS = 5_000_000  # numbers of G(n, d): 38 MiB, and ten times that as JSON


def node_scores(tree: TokenTree, acceptance: Acceptance) -> np.ndarray:
    """Return f(v), the probability that node v is accepted: the product of p[rank] along its path (paper §3.1).

    Returns:
        float64 [n]; 1 for the root, 0 below a rank that the vector does not have.
    """
    by_level = np.atleast_2d(acceptance.probs)  # deeper than the last row: as the last row
    levels, ranks = by_level.shape
    table = np.zeros((levels, ranks + 2))  # column 0 for the root, the last one for ranks beyond the vector
    table[:, 1:-1] = by_level
    rows = np.clip(tree.depths - 1, 0, levels - 1)
    probs = table[rows, np.minimum(tree.child_ranks, ranks + 1)].tolist()
    scores = [1.0]
    for prob, parent in zip(probs[1:], tree.parents[1:].tolist(), strict=True):
        scores.append(prob * scores[parent])
    return np.array(scores)


def expected_tokens(tree: TokenTree, acceptance: Acceptance) -> float:
    """Return F(T), the tokens one target pass yields on average, bonus token counted (paper Proposition 3.1)."""
    return float(node_scores(tree, acceptance).sum())


def _check(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"{name}: found {value!r}, expected a whole number from {low} to {high}")
    return int(value)


def _rows(acceptance: Acceptance, depth: int) -> np.ndarray:
    """Return the probabilities below a node with 1 .. depth levels left, float64 [depth, B], as `search` wants them."""
    if isinstance(acceptance, AcceptanceVector):  # a view: deep trees do not copy the vector once per level
        return np.broadcast_to(acceptance.probs, (depth, len(acceptance)))
    return np.array([acceptance.at_level(depth - left) for left in range(depth)]).reshape(depth, len(acceptance))


def is_monotone(acceptance: Acceptance) -> bool:
    """Whether no rank is accepted more often than the one before it, so that best-first is exact."""
    return bool(np.all(np.diff(acceptance.probs, axis=-1) <= 0.0))


def expected_tokens_table(acceptance: Acceptance, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), the largest F over trees of exactly n nodes and at most d edges deep (paper §3.1, Algorithm 1).

    Exact for any vector or matrix: best-first when ranks never increase, the dynamic program otherwise. Ranks beyond
    the vector are not used, so a shallow tree can have too few places for n nodes.

    Args:
        max_size: largest n, counting the root.
        max_depth: largest d, in edges.

    Returns:
        float64 [max_size + 1, max_depth + 1], indexed [n, d]; -inf where no such tree exists.

    Raises:
        ValueError: for sizes out of range or a table too large to compute.
    """
    max_size, max_depth = _check("max_size", max_size, 1, MAX_NODES), _check("max_depth", max_depth, 0, MAX_NODES)
    _check_cells(max_size, max_depth)
    deepest = min(max_depth, max_size - 1)
    table = np.full((max_size + 1, max_depth + 1), -np.inf)
    table[1, :] = 1.0
    if is_monotone(acceptance):
        for depth in range(1, deepest + 1):
            if depth * max_size > MAX_GROWN:
                raise ValueError(
                    f"max_depth: found {max_depth} for trees of up to {max_size} nodes, expected at most "
                    f"{MAX_GROWN // max_size}; deeper trees still gain with this vector"
                )
            scores = best_first(_rows(acceptance, depth), max_size)[2]
            table[1 : len(scores) + 1, depth:] = np.cumsum(scores)[:, None]
            if isinstance(acceptance, AcceptanceVector) and np.array_equal(table[:, depth], table[:, depth - 1]):
                break  # for equal rows, no deeper level will ever help
    elif isinstance(acceptance, AcceptanceVector):
        for depth, by_branches in enumerate(_until_settled(_rows(acceptance, deepest), max_size), start=1):
            table[:, depth:] = by_branches.max(axis=1)[:, None]
    else:  # what a level is worth depends on its depth, so each d is a program of its own
        for depth in range(1, deepest + 1):
            *_, top = dynamic_program(_rows(acceptance, depth), max_size)
            table[:, depth] = top.max(axis=1)
    table[:, deepest + 1 :] = table[:, [deepest]]
    return table


def _check_cells(max_size: int, max_depth: int, tables: int = 1) -> None:
    """Refuse tables of G(n, d) that would fill memory, before any of it is asked for."""
    cells = tables * (max_size + 1) * (max_depth + 1)
    if cells > MAX_CELLS:
        taken = f"{8 * cells / 2**30:.1f} GiB" if 8 * cells >= 2**30 else f"{8 * cells / 2**20:.1f} MiB"
        many = f"{tables} tables of " if tables > 1 else ""
        raise ValueError(
            f"{many}max_size {max_size} and max_depth {max_depth}: found {cells:,} numbers, which take {taken}, "
            f"expected at most {MAX_CELLS:,}; choose smaller bounds"
        )


def optimal_tree(acceptance: Acceptance, *, size: int, depth: int | None = None) -> TokenTree:
    """Return a tree of exactly `size` nodes and at most `depth` edges deep with the largest F.

    Args:
        size: nodes including the root.
        depth: deepest level in edges; None leaves it open.

    Raises:
        ValueError: for sizes out of range, or when no tree of that size fits in that depth.
    """
    size = _check("size", size, 1, MAX_NODES)
    depth = size - 1 if depth is None else min(_check("depth", depth, 0, MAX_NODES), size - 1)
    rows = _rows(acceptance, depth)
    if is_monotone(acceptance):
        parents, ranks, _ = best_first(rows, size)
        if len(parents) == size:
            return TokenTree.from_links(parents, ranks)[0]
    else:
        program = _until_settled if isinstance(acceptance, AcceptanceVector) else dynamic_program
        tables = list(program(rows, size))
        if size == 1:
            return TokenTree(np.array([-1]))
        if tables and tables[-1][size].max() > -np.inf:
            return TokenTree.from_links(*rebuild(rows, tables, size))[0]
    raise ValueError(
        f"size {size}: found no tree with at most {depth} levels below the root and {len(acceptance)} ranks per node, "
        f"expected at most {_capacity(len(acceptance), depth)} nodes"
    )


def _until_settled(rows: np.ndarray, max_size: int):
    """Yield the tables of the dynamic program until one more level changes nothing: for equal rows, none ever will."""
    before = None
    for table in dynamic_program(rows, max_size):
        yield table
        best = table.max(axis=1)
        if before is not None and np.array_equal(best, before):
            return
        before = best


def best_first_tree(acceptance: Acceptance, *, size: int, depth: int | None = None) -> TokenTree:
    """Return the tree that grows by the most likely next node (the rule by which Medusa's trees are chosen).

    Optimal when ranks never increase; on a noisy vector it can stop before a good rank that hides behind a poor one.

    Args:
        size, depth: as for `optimal_tree`; the tree is smaller where ranks and levels run out.
    """
    size = _check("size", size, 1, MAX_NODES)
    depth = size - 1 if depth is None else min(_check("depth", depth, 0, MAX_NODES), size - 1)
    parents, ranks, _ = best_first(_rows(acceptance, depth), size)
    return TokenTree.from_links(parents, ranks)[0]


def beam_tree(acceptance: Acceptance, *, width: int, depth: int) -> TokenTree:
    """Return the tree of a beam search: at every level the `width` most likely nodes below those of the level above.

    Raises:
        ValueError: for numbers out of range or more than 100,000 nodes.
    """
    _check("depth", depth, 0, MAX_NODES)
    _check("width", width, 1, (MAX_NODES - 1) // max(depth, 1))
    parents, ranks, level, scores = [-1], [0], [0], [1.0]
    for below in range(1, depth + 1):
        probs = acceptance.at_level(below).tolist()
        heap = [(-scores[node] * probs[0], node, 1) for node in level]
        heapq.heapify(heap)
        level = []
        while heap and len(level) < width:
            negative, parent, rank = heapq.heappop(heap)
            level.append(len(parents))
            parents.append(parent)
            ranks.append(rank)
            scores.append(-negative)
            if rank < len(probs):
                heapq.heappush(heap, (-scores[parent] * probs[rank], parent, rank + 1))
    return TokenTree.from_links(np.array(parents), np.array(ranks))[0]


def tree_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - sum p), the tokens per step that no tree of these ranks exceeds, however large; inf at sum 1."""
    return 1.0 / acceptance.reject if acceptance.reject > 0.0 else float("inf")


def bootstrap_tables(
    acceptance: AcceptanceVector,
    *,
    max_size: int,
    max_depth: int,
    resamples: int = 50,
    generator: np.random.Generator | None = None,
) -> np.ndarray | None:
    """Return G(n, d) for vectors that the same measurement might have found; quantiles over them are its intervals.

    The tree is optimised anew for each, so the spread holds the choice of tree as well as its value.

    Returns:
        float64 [resamples, max_size + 1, max_depth + 1], or None when nothing is known about the sample.

    Raises:
        ValueError: as `expected_tokens_table`.
    """
    _check_cells(max_size, max_depth, resamples)
    vectors = acceptance.resamples(resamples, generator=generator)
    if vectors is None:
        return None
    return np.array([expected_tokens_table(v, max_size=max_size, max_depth=max_depth) for v in vectors])


def best_expected_tokens(tree: TokenTree, acceptance: AcceptanceVector) -> float:
    """Return G at a tree's own size and depth: what the best tree of that shape would yield under `acceptance`.

    Ranks that the tree uses beyond the vector are worth nothing, but may be used by the best tree as well.

    Raises:
        ValueError: for a tree too large to search, where ranks do not always decrease.
    """
    missing = max(0, int(tree.child_ranks.max()) - len(acceptance.probs))
    padded = AcceptanceVector(np.concatenate([acceptance.probs, np.zeros(missing)])) if missing else acceptance
    if is_monotone(padded):  # its value alone: no tree has to be built, so that it may be large
        return float(best_first(_rows(padded, tree.depth), tree.size)[2].sum())
    return expected_tokens(optimal_tree(padded, size=tree.size, depth=tree.depth), padded)


@dataclass(frozen=True, slots=True, eq=False)
class Regret:
    """What trees lose where another vector holds than the one they were designed for.

    Args:
        lost: float64 [m, m]; [i, j] = tokens per step that vector i's best tree loses under vector j. Zero on the
            diagonal, never below zero.
        best: float64 [m], what each vector's own best tree yields.
    """

    lost: np.ndarray
    best: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The loss as a part of what the vector's own tree yields, float64 [m, m]."""
        return self.lost / self.best[None, :]

    @property
    def worst(self) -> tuple[int, int]:
        """The pair (tree, vector) that loses the most."""
        tree, vector = np.unravel_index(int(self.lost.argmax()), self.lost.shape)
        return int(tree), int(vector)

    @property
    def safest(self) -> int:
        """The tree whose largest loss is smallest."""
        return int(self.lost.max(axis=1).argmin())

    @property
    def mean(self) -> float:
        """The loss averaged over all pairs of different vectors."""
        pairs = len(self.best) * (len(self.best) - 1)
        return float(self.lost.sum() / pairs) if pairs else 0.0


def regret_matrix(vectors: Sequence[AcceptanceVector], *, size: int, depth: int) -> Regret:
    """Set the best tree of each vector against every other vector: how well do trees transfer?

    Args:
        vectors: m of them.
        size, depth: n and the largest d of every tree.

    Raises:
        ValueError: for no vectors, or when no tree has this shape.
    """
    if not vectors:
        raise ValueError("vectors: found none, expected at least one")
    ranks = max(len(vector) for vector in vectors)  # ranks that a vector lacks are worth nothing, but may be drafted
    padded = [AcceptanceVector(np.pad(vector.probs, (0, ranks - len(vector)))) for vector in vectors]
    trees = [optimal_tree(vector, size=size, depth=depth) for vector in padded]
    tokens = np.array([[expected_tokens(tree, vector) for vector in padded] for tree in trees])
    return Regret(lost=np.maximum(np.diag(tokens)[None, :] - tokens, 0.0), best=np.diag(tokens).copy())


def _capacity(ranks: int, depth: int) -> int:
    return sum(ranks**level for level in range(min(depth, 60) + 1))


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
