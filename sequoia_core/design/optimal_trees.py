"""Expected tokens of a tree, and the best tree of every size. n = nodes with the root, d = depth in edges, B = ranks"""

from collections.abc import Sequence

import numpy as np

from .acceptance import AcceptanceVector
from .acceptance_matrix import AcceptanceMatrix
from .bootstrap import TABLE_RESAMPLES
from .tree import TokenTree
from .tree_search import REACH, Grown, best_first, dynamic_program, rebuild

Acceptance = AcceptanceVector | AcceptanceMatrix

MAX_NODES = 100_000
MAX_GROWN = 20_000_000  # nodes grown best-first for one table: a minute
MAX_CELLS = 5_000_000  # numbers of G(n, d): 38 MiB, and ten times that as JSON


def node_scores(tree: TokenTree, acceptance: Acceptance) -> np.ndarray:
    """Return f(v) float64 [n], the probability that node v is accepted: the product of p[rank] along its path (§3.1)"""
    by_level = acceptance.levels  # deeper than the last row: as the last row
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


def ranks_not_measured(tree: TokenTree, acceptance: Acceptance) -> str | None:
    """Say how much of a tree lies at ranks that its vector does not have; they count as never accepted."""
    known, beyond = len(acceptance), int((tree.child_ranks > len(acceptance)).sum())
    if not beyond:
        return None
    last = int(tree.child_ranks.max())
    ranks = f"Rank {last} was" if last == known + 1 else f"Ranks {known + 1} to {last} were"
    return f"{ranks} never measured: {beyond} of {tree.size} nodes have such a rank and count as never accepted."


def check_whole(name: str, value: int, low: int, high: int) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ValueError(f"{name}: found {value!r}, expected a whole number from {low} to {high}")
    return int(value)


def rows_by_levels_left(acceptance: Acceptance, depth: int) -> np.ndarray:
    """Return the probabilities below a node with 1 .. depth levels left, float64 [depth, B], for `tree_search`."""
    if len(acceptance.levels) == 1:  # a view: deep trees do not copy the vector once per level
        return np.broadcast_to(acceptance.levels, (depth, len(acceptance)))
    return acceptance.levels[np.minimum(np.arange(depth)[::-1], len(acceptance.levels) - 1)]


def is_monotone(acceptance: Acceptance) -> bool:
    """Whether no rank is accepted more often than the one before it, so that best-first is exact."""
    return bool(np.all(np.diff(acceptance.levels, axis=-1) <= 0.0))


def expected_tokens_table(acceptance: Acceptance, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), the largest F over trees of exactly n nodes and at most d edges deep (paper §3.1, Algorithm 1).

    Exact for any vector or matrix: best-first when ranks never increase, the dynamic program otherwise.

    Args:
        max_size: largest n, counting the root.
        max_depth: largest d, in edges.

    Returns:
        float64 [max_size + 1, max_depth + 1], indexed [n, d]; -inf where no such tree exists.
    """
    if is_monotone(acceptance):
        return tokens_grown(grown_to_depths(acceptance, max_size, max_depth), max_size, max_depth)
    _check_bounds(max_size, max_depth)
    deepest = min(max_depth, max_size - 1)
    table = _single_nodes(max_size, max_depth)
    if len(acceptance.levels) == 1:
        for depth, by_branches in enumerate(
            _until_settled(rows_by_levels_left(acceptance, deepest), max_size), start=1
        ):
            table[:, depth:] = by_branches.max(axis=1)[:, None]
    else:  # a matrix differs by depth, so each d needs a dynamic program of its own
        for depth in range(1, deepest + 1):
            *_, top = dynamic_program(rows_by_levels_left(acceptance, depth), max_size)
            table[:, depth:] = top.max(axis=1)[:, None]
    return table


def grown_to_depths(acceptance: Acceptance, max_size: int, max_depth: int) -> list[Grown]:
    """Grow trees best-first to at most d = 1, 2, … edges, of ranks that never increase; ends where d limits no more.

    The first n nodes of each are the best tree of n nodes.
    """
    _check_bounds(max_size, max_depth)
    trees: list[Grown] = []
    for depth in range(1, min(max_depth, max_size - 1) + 1):
        if depth * max_size > MAX_GROWN:
            raise ValueError(
                f"max_depth: found {max_depth} for trees of up to {max_size} nodes, expected at most "
                f"{MAX_GROWN // max_size}; deeper trees still gain with this vector"
            )
        grown = best_first(rows_by_levels_left(acceptance, depth), max_size)
        if grown.depths.max() < depth:
            break
        trees.append(grown)
    return trees


def tokens_grown(trees: Sequence[Grown], max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d) of `grown_to_depths`, float64 [max_size + 1, max_depth + 1]."""
    table = _single_nodes(max_size, max_depth)
    for depth, grown in enumerate(trees, start=1):
        table[1 : len(grown.scores) + 1, depth:] = np.cumsum(grown.scores)[:, None]
    return table


def _single_nodes(max_size: int, max_depth: int) -> np.ndarray:
    table = np.full((max_size + 1, max_depth + 1), -np.inf)
    table[1, :] = 1.0
    return table


def _check_bounds(max_size: int, max_depth: int) -> None:
    check_whole("max_size", max_size, 1, MAX_NODES)
    check_whole("max_depth", max_depth, 0, MAX_NODES)
    _check_cells(max_size, max_depth)


def _check_cells(max_size: int, max_depth: int, tables: int = 1) -> None:
    """Refuse tables of G(n, d) that would fill memory."""
    cells = tables * (max_size + 1) * (max_depth + 1)
    if cells > MAX_CELLS:
        taken = f"{8 * cells / 2**30:.1f} GiB" if 8 * cells >= 2**30 else f"{8 * cells / 2**20:.1f} MiB"
        many = f"{tables} tables of " if tables > 1 else ""
        raise ValueError(
            f"{many}max_size {max_size} and max_depth {max_depth}: found {cells:,} numbers, which take {taken}, "
            f"expected at most {MAX_CELLS:,}; choose smaller bounds"
        )


def optimal_tree(acceptance: Acceptance, *, size: int, depth: int | None = None) -> TokenTree:
    """Return a tree of exactly `size` nodes, root included, and at most `depth` edges deep with the largest F."""
    size = check_whole("size", size, 1, MAX_NODES)
    depth = size - 1 if depth is None else min(check_whole("depth", depth, 0, MAX_NODES), size - 1)
    rows = rows_by_levels_left(acceptance, depth)
    if is_monotone(acceptance):
        grown = best_first(rows, size)
        if len(grown.parents) == size:
            return TokenTree.from_links(grown.parents, grown.ranks)[0]
    else:
        program = _until_settled if len(acceptance.levels) == 1 else dynamic_program
        tables = list(program(rows, size))
        if size == 1:
            return TokenTree(np.array([-1]))
        if tables and tables[-1][size].max() > -np.inf:
            return TokenTree.from_links(*rebuild(rows, tables, size))[0]
    largest = sum(len(acceptance) ** level for level in range(min(depth, 60) + 1))
    raise ValueError(
        f"size {size}: found no tree with at most {depth} levels below the root and {len(acceptance)} ranks per node, "
        f"expected at most {largest} nodes"
    )


def _until_settled(rows: np.ndarray, max_size: int):
    """Yield the tables of the dynamic program until one more level changes nothing."""
    before = None
    for table in dynamic_program(rows, max_size):
        yield table
        best = table.max(axis=1)
        if before is not None and np.array_equal(best, before):
            return
        before = best


def tree_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - sum p), the tokens per step that no tree of these ranks exceeds; inf at sum 1.

    By depth it is what the last row allows, then one level more for each row before it.
    """
    *above, last = np.minimum(acceptance.levels.sum(axis=1), 1.0).tolist()
    limit = 1.0 / (1.0 - last) if last < 1.0 else float("inf")
    for accepted in reversed(above):
        limit = 1.0 + accepted * limit if accepted else 1.0
    return limit


def bootstrap_tables(
    acceptance: AcceptanceVector, *, max_size: int, max_depth: int, resamples: int = TABLE_RESAMPLES
) -> np.ndarray | None:
    """Return G(n, d) for resampled vectors, float64 [resamples, max_size + 1, max_depth + 1]; None if there are none.

    The tree is optimised again for each, so the spread includes the choice of the tree.
    """
    _check_cells(max_size, max_depth, resamples)
    vectors = acceptance.resamples(resamples)
    if vectors is None:
        return None
    return np.array([expected_tokens_table(v, max_size=max_size, max_depth=max_depth) for v in vectors])


def best_expected_tokens(tree: TokenTree, acceptance: Acceptance) -> float:
    """Return G at a tree's own size, depth and ranks; ranks beyond the vector have probability 0."""
    missing = max(0, int(tree.child_ranks.max()) - len(acceptance))
    padded = AcceptanceMatrix(np.pad(acceptance.levels, ((0, 0), (0, missing)))) if missing else acceptance
    if is_monotone(padded):  # only the value is needed, so no tree is built and it may be large
        return float(best_first(rows_by_levels_left(padded, tree.depth), tree.size).scores.sum())
    return expected_tokens(optimal_tree(padded, size=tree.size, depth=tree.depth), padded)


def table_within_reach(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), float64 [max_size + 1, max_depth + 1]; NaN beyond n = REACH where that is too much to search."""
    try:
        return expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth)
    except ValueError:
        if max_size <= REACH:
            raise
        table = np.full((max_size + 1, max_depth + 1), np.nan)
        table[: REACH + 1] = expected_tokens_table(acceptance, max_size=REACH, max_depth=max_depth)
        return table


def best_value_within_reach(tree: TokenTree, acceptance: AcceptanceVector) -> float | None:
    """Return the largest F at a tree's size and depth; None where that is too much to search."""
    try:
        return best_expected_tokens(tree, acceptance)
    except ValueError:
        return None
