"""The token tree, stored as an array of parents. n = number of nodes, including the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import networkx as nx

MAX_TREE_SIZE = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """A rooted tree whose siblings are ordered by rank.

    Nodes are numbered breadth-first, with siblings next to each other in rank order, so `parents` never decreases.
    Node 0 is the root, the last committed token.

    Args:
        parents: int [n], with `parents[0] == -1` and `parents[i] < i`; stored as read-only int32.
    """

    parents: np.ndarray

    def __post_init__(self) -> None:
        raw = np.asarray(self.parents)
        if raw.ndim != 1 or raw.size == 0 or (raw.dtype.kind not in "iu"):
            raise ValueError(f"parents: found shape {raw.shape} of {raw.dtype}, expected a 1-D list of integers")
        if raw.size > MAX_TREE_SIZE:
            raise ValueError(f"parents: found {raw.size} nodes, expected at most {MAX_TREE_SIZE}")
        if raw[0] != -1:
            raise ValueError(f"node 0: found parent {raw[0]}, expected -1 for the root")
        bad = np.flatnonzero((raw[1:] < 0) | (raw[1:] >= np.arange(1, raw.size))) + 1
        if bad.size:
            raise ValueError(f"node {bad[0]}: found parent {raw[bad[0]]}, expected a node from 0 to {bad[0] - 1}")
        bad = np.flatnonzero(np.diff(raw) < 0) + 1
        if bad.size:
            raise ValueError(
                f"node {bad[0]}: found parent {raw[bad[0]]} after parent {raw[bad[0] - 1]}, expected breadth-first "
                "order with siblings next to each other"
            )
        parents = raw.astype(np.int32)
        parents.setflags(write=False)
        object.__setattr__(self, "parents", parents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTree) and np.array_equal(self.parents, other.parents)

    def __hash__(self) -> int:
        return hash(self.parents.tobytes())

    @classmethod
    def from_links(cls, parents: np.ndarray, ranks: np.ndarray) -> tuple[TokenTree, np.ndarray]:
        """Build a tree from nodes in any order, root first.

        Args:
            parents: int [n], parent of each node in the caller's numbering; -1 for node 0.
            ranks: int [n], any numbers that increase in the order of siblings.

        Returns:
            The tree and `order`, int64 [n]; `order[i]` is the caller's number for node i.
        """
        n = len(parents)
        children: list[list[int]] = [[] for _ in range(n)]
        for node in np.argsort(ranks, kind="stable"):
            if node != 0:
                children[parents[node]].append(int(node))
        order = [0]
        links = [-1]
        for new, old in enumerate(order):  # visits nodes breadth-first, because the list grows during the loop
            order.extend(children[old])
            links.extend([new] * len(children[old]))
        assert len(order) == n, "the links form one tree"
        return cls(np.array(links)), np.array(order)

    @classmethod
    def from_valid_parents(cls, parents: np.ndarray) -> TokenTree:
        """Return a tree without validating `parents`, int32 [n], which must not be modified afterwards."""
        parents.setflags(write=False)
        tree = object.__new__(cls)
        object.__setattr__(tree, "parents", parents)
        return tree

    def to_networkx(self, **attributes: Sequence[Any] | np.ndarray) -> nx.DiGraph:
        """Return the tree as a directed graph with edges from parent to child; each node has a rank and a depth.

        Args:
            attributes: further node attributes by name, such as `score` or `token`; [n] each.
        """
        import networkx as nx  # slow to import

        columns = {"rank": self.child_ranks, "depth": self.depths} | attributes
        rows = zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True)
        graph = nx.DiGraph()
        graph.add_nodes_from((node, dict(zip(columns, row, strict=True))) for node, row in enumerate(rows))
        graph.add_edges_from((int(parent), node) for node, parent in enumerate(self.parents) if node)
        return graph

    def cut_to_depth(self, depth: int) -> TokenTree:
        """Return the tree without nodes deeper than `depth`; the other nodes keep their numbers."""
        return TokenTree(self.parents[self.depths <= depth])

    @property
    def size(self) -> int:
        """Number of nodes, including the root; equal to the number of tokens in a target pass."""
        return len(self.parents)

    @property
    def level_starts(self) -> list[int]:
        """The first node of each level, followed by n."""
        last_child = np.cumsum(self.child_counts).tolist()  # the largest child id of this node and all earlier ones
        starts = [0]
        stop = 1
        while stop < self.size:
            starts.append(stop)
            stop = last_child[stop - 1] + 1
        return [*starts, self.size]

    @property
    def depths(self) -> np.ndarray:
        """Number of edges from the root to each node, int32 [n]."""
        starts = self.level_starts
        return np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))

    @property
    def depth(self) -> int:
        """Number of edges on the longest path; equal to the number of draft passes per step."""
        return len(self.level_starts) - 2

    @property
    def child_ranks(self) -> np.ndarray:
        """Rank of each node among its siblings, counted from 1, int32 [n]; 0 for the root."""
        first = np.searchsorted(self.parents, self.parents, side="left")
        ranks = (np.arange(self.size) - first + 1).astype(np.int32)
        ranks[0] = 0
        return ranks

    @property
    def levels(self) -> list[np.ndarray]:
        """Node ids of each level, from the root down; one int64 array per level."""
        nodes = np.arange(self.size)
        return [nodes[start:stop] for start, stop in pairwise(self.level_starts)]

    @property
    def leaves(self) -> int:
        """Number of nodes without children."""
        return int((self.child_counts == 0).sum())

    @property
    def child_counts(self) -> np.ndarray:
        """Number of children of each node, int64 [n]."""
        return np.bincount(self.parents[1:], minlength=self.size)

    def children(self, node: int) -> range:
        """Return the children of a node in rank order."""
        start, stop = np.searchsorted(self.parents, np.array([node, node + 1], dtype=np.int32))
        return range(int(start), int(stop))

    @property
    def ancestor_mask(self) -> np.ndarray:
        """Mask of ancestors, bool [n, n]; row i is True at node i and at its ancestors."""
        mask = np.eye(self.size, dtype=bool)
        for node in range(1, self.size):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path_to(self, node: int) -> list[int]:
        """Return the node ids on the path from the root to `node`, including both."""
        path = [node]
        while path[-1] != 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def paths(self) -> list[tuple[int, ...]]:
        """Return the 1-based ranks along the path from the root to each node; `()` for the root."""
        ranks = self.child_ranks.tolist()
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, self.size):
            paths.append((*paths[self.parents[node]], ranks[node]))
        return paths

    def shared_with(self, other: TokenTree) -> np.ndarray:
        """Return, for each node, the node of `other` with the same path of ranks, or -1; int64 [n]."""
        shared = np.full(self.size, -1, dtype=np.int64)
        shared[0] = 0
        ranks = self.child_ranks
        counts = other.child_counts
        first = np.searchsorted(other.parents, np.arange(other.size), side="left")
        for level in self.levels[1:]:
            twins = shared[self.parents[level]]
            exists = (twins >= 0) & (ranks[level] <= counts[twins])
            shared[level[exists]] = first[twins[exists]] + ranks[level[exists]] - 1
        return shared
