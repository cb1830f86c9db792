"""How expected tokens grow with tree size, for best and plain trees. N = largest size, D = depth, k = points."""

import math

import numpy as np

from .acceptance import AcceptanceVector
from .bootstrap import interval
from .optimal_trees import expected_tokens, is_monotone
from .plain_trees import beam_tree, best_chains, best_first_tree, branching_tree, chain_tree
from .tree import TokenTree

Curve = tuple[np.ndarray, np.ndarray]  # sizes int [k], expected tokens float64 [k]
CURVE_POINTS = 24  # of the curve of a plain tree


def growth_curves(acceptance: AcceptanceVector, table: np.ndarray, *, depth: int) -> dict[str, Curve]:
    """Return name -> curve of the best tree at two depth limits (`depth` and D) and of plain trees of that depth.

    `table` is G(n, d), float64 [N + 1, D + 1]; -inf or NaN where there is no value.
    """
    max_size, max_depth = table.shape[0] - 1, table.shape[1] - 1
    curves = {}
    for limit in (depth, max_depth):
        sizes = np.flatnonzero(np.isfinite(table[:, limit]))
        if limit == depth or table[sizes[-1], limit] > 1.01 * table[sizes[-1], depth]:  # else one line hides the other
            curves[f"best tree, d ≤ {limit}"] = (sizes, table[sizes, limit])
    for name, trees in _plain_trees(acceptance, max_size, depth, max_depth).items():
        sizes, first = np.unique([tree.size for tree in trees], return_index=True)
        curves[name] = (sizes, np.array([expected_tokens(trees[i], acceptance) for i in first]))
    return curves


def _plain_trees(acceptance: AcceptanceVector, max_size: int, depth: int, max_depth: int) -> dict[str, list[TokenTree]]:
    widths = np.unique(np.geomspace(1, max((max_size - 1) // depth, 1), CURVE_POINTS).astype(int)).tolist()
    sizes = np.unique(np.geomspace(1, max_size, CURVE_POINTS).astype(int)).tolist()
    trees = {
        "one chain": [chain_tree(length) for length in range(depth + 1)],
        f"k chains, d ≤ {max_depth}": [best_chains(acceptance, size=size, depth=max_depth) for size in sizes],
        f"beam of depth {depth}": [beam_tree(acceptance, width=k, depth=depth) for k in widths],
        "two children everywhere": [
            branching_tree([2] * levels) for levels in range(depth + 1) if 2 ** (levels + 1) - 1 <= max_size
        ],
    }
    if not is_monotone(acceptance):  # otherwise it is the best tree
        trees["best first (Medusa)"] = [best_first_tree(acceptance, size=size, depth=depth) for size in sizes]
    return trees


def theorem_bound(acceptance: AcceptanceVector, *, max_size: int, depth: int) -> tuple[float, Curve] | None:
    """Return b and a lower bound of G(n, depth): the best complete k-ary trees of the paper's proof (§3.1).

    b is the largest with P(the first k children are all rejected) <= k^-b for every k; the bound grows as
    b · log n / log log n. None where the ranks give no b above 0.
    """
    ranks = np.arange(2, len(acceptance) + 1)
    rejection = np.maximum(1.0 - np.cumsum(acceptance.probs), 0.0)[1:]
    with np.errstate(divide="ignore"):
        b = float(np.min(-np.log(rejection) / np.log(ranks), initial=math.inf)) if ranks.size else 0.0
    if b <= 0.0:
        return None
    tokens = np.ones(max_size + 1)
    for k in ranks.tolist():
        size, chance, value = 1, 1.0, 1.0
        for level in range(1, depth + 1):
            size, chance = size + k**level, chance * (1.0 - k**-b)
            if size > max_size:
                break
            value += chance
            tokens[size] = max(tokens[size], value)
    return b, (np.arange(1, max_size + 1), np.maximum.accumulate(tokens)[1:])


def growth_band(tables: np.ndarray, *, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (sizes int [k], low, high float64 [k]), the 95% interval of G(n, depth) over `bootstrap_tables`."""
    sizes = np.flatnonzero(np.isfinite(tables[0, :, depth]))
    return sizes, *interval(tables[:, sizes, depth])


def next_node_value(table: np.ndarray, *, size: int, depth: int) -> float | None:
    """Return G(n + 1, d) - G(n, d) of a table [N + 1, D + 1]; None where no node fits or the tree is off the table."""
    if size + 1 >= len(table) or depth >= table.shape[1]:
        return None
    here, there = table[size : size + 2, depth].tolist()
    return there - here if math.isfinite(there) and math.isfinite(here) else None
