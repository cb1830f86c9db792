"""Tables of expected tokens for any vector: sizes too large to search are left out instead of raising."""

from __future__ import annotations

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import best_expected_tokens, expected_tokens_table
from .tree import TokenTree
from .tree_search import REACH


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
