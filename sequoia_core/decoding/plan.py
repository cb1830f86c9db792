"""Tree plans: the masks, draft passes and cache positions that decoding derives from a tree."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch

from ..trees.tree import TokenTree

MAX_CACHED_SIZE = 1_024  # plans of larger trees are not cached; the mask takes 4 MiB at this size


@dataclass(frozen=True, slots=True)
class Level:
    """One draft pass over m nodes, which have c children in total.

    Attributes:
        nodes: int64 [m], the level's inner nodes; only these are forwarded.
        counts: int64 [m], number of children of each of these nodes.
        tree_mask: float32 [m, earlier + m], additive mask over all nodes forwarded so far, including this pass.
        children: the nodes of the next level, which are numbered consecutively.
        rows: int64 [c], index of each child's parent among the m nodes.
        draw_indices: int64 [c], index of each child's token in the flattened draws [m, most_children].
    """

    nodes: np.ndarray
    counts: np.ndarray
    tree_mask: torch.Tensor
    most_children: int
    children: slice
    rows: torch.Tensor
    draw_indices: torch.Tensor


class TreePlan:
    """A tree's mask, draft passes and cache positions.

    Attributes:
        inner: int64 [i], the nodes with children, in the order in which they are forwarded.
        cache_positions: int64 [n], a node's index in `inner`, which is its position in the draft's cache relative to
            the root's; -1 for a leaf, which is not forwarded.
        child_counts: int64 [n], number of children of each node.
        child_starts: int64 [i + 1]; the children of inner node i are nodes child_starts[i] + 1 to child_starts[i + 1].
        depths: int64 [n], number of edges from the root to each node.
        tree_mask: float32 [n, n], additive mask over the tree: each node attends to its ancestors and itself.
    """

    def __init__(self, tree: TokenTree, **known: np.ndarray | torch.Tensor) -> None:
        """Plan a tree; attributes passed in `known` are not recomputed."""
        self.tree = tree
        self.__dict__.update(known)

    @cached_property
    def depths(self) -> np.ndarray:
        return self.tree.depths.astype(np.int64)

    @cached_property
    def child_counts(self) -> np.ndarray:
        return self.tree.child_counts.astype(np.int64)

    @cached_property
    def tree_mask(self) -> torch.Tensor:
        return torch.from_numpy(np.where(self.tree.ancestor_mask, np.float32(0.0), np.float32(-np.inf)))

    @cached_property
    def inner(self) -> np.ndarray:
        return np.flatnonzero(self.child_counts)  # breadth-first, the order in which levels are forwarded

    @cached_property
    def child_starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.child_counts[self.inner])]).astype(np.int64)

    @cached_property
    def levels(self) -> list[Level]:
        """The tree's draft passes, root first; empty for a tree that is only a root."""
        levels = []
        counts = self.child_counts
        ranks = self.tree.child_ranks
        forwarded = 0
        for level, below in pairwise(self.tree.levels):
            nodes = level[counts[level] > 0]
            forwarded += len(nodes)
            most = int(counts[nodes].max())
            rows = np.repeat(np.arange(len(nodes)), counts[nodes])
            levels.append(
                Level(
                    nodes=nodes.astype(np.int64),
                    counts=counts[nodes],
                    tree_mask=self.tree_mask[np.ix_(nodes, self.inner[:forwarded])].contiguous(),
                    most_children=most,
                    children=slice(int(below[0]), int(below[-1]) + 1),
                    rows=torch.from_numpy(rows),
                    draw_indices=torch.from_numpy(rows * most + ranks[below].astype(np.int64) - 1),
                )
            )
        return levels

    @cached_property
    def first_children(self) -> np.ndarray:
        """Each node's first child, int64 [n]; meaningless for a leaf."""
        return np.searchsorted(self.tree.parents, np.arange(self.tree.size, dtype=np.int32)).astype(np.int64)

    @cached_property
    def cache_positions(self) -> np.ndarray:
        positions = np.full(self.tree.size, -1, dtype=np.int64)
        positions[self.inner] = np.arange(len(self.inner))
        return positions


def get_tree_plan(tree: TokenTree) -> TreePlan:
    """Return the tree's plan, which is cached if its mask is small."""
    return _cached_plan(tree) if tree.size <= MAX_CACHED_SIZE else TreePlan(tree)


@lru_cache(maxsize=8)  # consecutive short runs often use the same tree, as in benchmarks
def _cached_plan(tree: TokenTree) -> TreePlan:
    return TreePlan(tree)


def padded(size: int) -> int:
    """Round a number of tokens up to the size of a padded pass, which is a power of two or a multiple of 32."""
    return 1 << (size - 1).bit_length() if size <= 32 else -(-size // 32) * 32
