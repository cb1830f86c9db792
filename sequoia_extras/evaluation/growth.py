"""Expected tokens by tree size, for optimal trees and chains. N = largest size, D = largest depth, k = points."""

import numpy as np

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import best_chains, chain_tree

Curve = tuple[np.ndarray, np.ndarray]  # sizes int [k], expected tokens float64 [k]
CURVE_POINTS = 24  # maximum number of points on the curve of k chains


def growth_curves(acceptance: AcceptanceVector, table: np.ndarray, *, depth: int) -> dict[str, Curve]:
    """Return curves by name: those of the best tree and of the best k chains of at most this depth, and of one chain.

    `table` contains G(n, d), float64 [N + 1, D + 1]; it is -inf or NaN where G is undefined.
    """
    max_size = table.shape[0] - 1
    reached = np.flatnonzero(np.isfinite(table[:, depth]))
    curves = {f"best tree, d ≤ {depth}": (reached, table[reached, depth])}
    sizes = np.unique(np.geomspace(1, max_size, CURVE_POINTS).astype(int)).tolist()
    trees = {
        f"k chains, d ≤ {depth}": [best_chains(acceptance, size=size, depth=depth) for size in sizes],
        "one chain": [chain_tree(length) for length in range(depth + 1)],
    }
    for name, chains in trees.items():
        reached, first = np.unique([tree.size for tree in chains], return_index=True)
        curves[name] = (reached, np.array([expected_tokens(chains[i], acceptance) for i in first]))
    return curves
