"""What decoding derives from a tree: masks, draft passes, positions in caches."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch

from ..design.tree import TokenTree

MAX_KEPT = 1_024  # nodes: a mask of 4 MiB


@dataclass(frozen=True, slots=True)
class Level:
    """One draft pass over m nodes, and their c children.

    Attributes:
        nodes, counts: the level's nodes that have children and how many, int64 [m]; only these are forwarded.
        tree_mask: float32 [m, earlier + m], additive mask over the nodes forwarded earlier and these.
        children: the nodes of the next level, numbered one after the other.
        rows: int64 [c], which of the m nodes is each child's parent.
        draw_indices: int64 [c], where each child's token lies in the draws [m, most_children], counted row after row.
    """

    nodes: np.ndarray
    counts: np.ndarray
    tree_mask: torch.Tensor
    most_children: int
    children: slice
    rows: torch.Tensor
    draw_indices: torch.Tensor


class TreePlan:
    """A tree's masks and draft passes.

    Attributes:
        inner: int64 [i], the nodes that have children, in the order in which they are forwarded.
        cache_positions: int64 [n], a node's index in `inner`, and so its position in the draft's cache counted from the
            root's; -1 for a leaf, which is not forwarded.
        child_counts: int64 [n].
        child_starts: int64 [i + 1]; the children of inner node i are nodes child_starts[i] + 1 to child_starts[i + 1].
        depths: int64 [n].
        tree_mask: float32 [n, n], additive mask over the tree: each node sees its ancestors and itself.
    """

    def __init__(self, tree: TokenTree, **known: np.ndarray | torch.Tensor) -> None:
        """Plan a tree; attributes that are `known` are not computed again."""
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
        return np.flatnonzero(self.child_counts)  # breadth-first, as levels are forwarded

    @cached_property
    def child_starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.child_counts[self.inner])]).astype(np.int64)

    @cached_property
    def levels(self) -> list[Level]:
        """The tree's draft passes, root first; none for a lone root."""
        levels, counts, ranks, forwarded = [], self.child_counts, self.tree.child_ranks, 0
        for level, below in pairwise(self.tree.levels):
            nodes = level[counts[level] > 0]
            forwarded += len(nodes)
            most, rows = int(counts[nodes].max()), np.repeat(np.arange(len(nodes)), counts[nodes])
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


def plan_of(tree: TokenTree) -> TreePlan:
    """Return the tree's plan, cached where its mask is small."""
    return _kept_plan(tree) if tree.size <= MAX_KEPT else TreePlan(tree)


@lru_cache(maxsize=8)  # many short runs over one tree are common, as in benchmarks
def _kept_plan(tree: TokenTree) -> TreePlan:
    return TreePlan(tree)
