"""Which of the trees that occurred in a run are worth a look: the typical one, the widest, the deepest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .tree import TokenTree


class Gallery(NamedTuple):
    """Some of a run's trees, and how large all of them were.

    Attributes:
        typical: the most frequent of the trees that have the median size.
        widest, deepest: with the largest level and with the most levels; of equals the most frequent.
        sizes: int64 [k], the sizes that occurred, rising.
        steps: int64 [k], steps with a tree of that size.
    """

    typical: TokenTree
    widest: TokenTree
    deepest: TokenTree
    sizes: np.ndarray
    steps: np.ndarray


def gallery(trees: Sequence[TokenTree], shown: Sequence[int]) -> Gallery:
    """Choose among the trees of a run.

    Args:
        trees: each shape once.
        shown: int [steps], which of them each step had.

    Raises:
        ValueError: for a run without steps.
    """
    if not len(shown):
        raise ValueError("shown: found no steps, expected at least one")
    counts = np.bincount(np.asarray(shown), minlength=len(trees))
    seen = np.flatnonzero(counts)
    sizes = np.array([trees[place].size for place in seen])
    widths = np.array([max(len(level) for level in trees[place].levels) for place in seen])
    depths = np.array([trees[place].depth for place in seen])
    median = np.quantile(np.repeat(sizes, counts[seen]), 0.5, method="lower")

    def most_frequent(chosen: np.ndarray) -> TokenTree:
        return trees[int(max(seen[chosen], key=lambda place: counts[place]))]

    occurred, places = np.unique(sizes, return_inverse=True)
    return Gallery(
        typical=most_frequent(sizes == median),
        widest=most_frequent(widths == widths.max()),
        deepest=most_frequent(depths == depths.max()),
        sizes=occurred,
        steps=np.bincount(places, weights=counts[seen]).astype(np.int64),
    )
