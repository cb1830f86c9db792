"""The token tree: one frozen record of parallel arrays. n = nodes including the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import networkx as nx

MAX_SIZE = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """A rooted tree whose siblings are ordered by rank.

    Nodes are numbered breadth-first with siblings contiguous in rank order, so `parents` never decreases after the
    root. Node 0 is the root: the last committed token, not speculated.

    Args:
        parents: int [n], `parents[0] == -1` and `parents[i] < i`; stored as read-only int32.
    """

    parents: np.ndarray

    def __post_init__(self) -> None:
        raw = np.asarray(self.parents)
        if raw.ndim != 1 or raw.size == 0 or (raw.dtype.kind not in "iu"):
            raise ValueError(f"parents: found shape {raw.shape} of {raw.dtype}, expected a 1-D list of integers")
        if raw.size > MAX_SIZE:
            raise ValueError(f"parents: found {raw.size} nodes, expected at most {MAX_SIZE}")
        if raw[0] != -1:
            raise ValueError(f"node 0: found parent {raw[0]}, expected -1 for the root")
        bad = np.flatnonzero((raw[1:] < 0) | (raw[1:] >= np.arange(1, raw.size))) + 1
        if bad.size:
            raise ValueError(f"node {bad[0]}: found parent {raw[bad[0]]}, expected a node from 0 to {bad[0] - 1}")
        bad = np.flatnonzero(np.diff(raw) < 0) + 1
        if bad.size:
            raise ValueError(
                f"node {bad[0]}: found parent {raw[bad[0]]} after parent {raw[bad[0] - 1]}, expected breadth-first "
                "order with siblings side by side"
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
        """Renumber nodes given in any order with the root first.

        Args:
            parents: int [n], parent of each node in the caller's numbering; -1 for node 0 only.
            ranks: int [n], order of each node among its siblings (any increasing numbers).

        Returns:
            The tree and `order` int64 [n]: the caller's node that became node i.
        """
        n = len(parents)
        children: list[list[int]] = [[] for _ in range(n)]
        for node in np.argsort(ranks, kind="stable"):
            if node != 0:
                children[parents[node]].append(int(node))
        order, links = [0], [-1]
        for new, old in enumerate(order):  # the list grows during the loop: breadth-first
            order.extend(children[old])
            links.extend([new] * len(children[old]))
        assert len(order) == n, "the links are those of one tree"
        return cls(np.array(links)), np.array(order)

    @classmethod
    def unchecked(cls, parents: np.ndarray) -> TokenTree:
        """Return a tree of parents int32 [n] that are known to be valid and never change."""
        parents.setflags(write=False)
        tree = object.__new__(cls)
        object.__setattr__(tree, "parents", parents)
        return tree

    def to_networkx(self, **attributes: Sequence[Any] | np.ndarray) -> nx.DiGraph:
        """Return the tree as a graph: an edge from each parent to its children, nodes 0 to n - 1 with rank and depth.

        `attributes` are more of each node by name, [n] each, such as score, token, draft_prob, outcome.
        """
        import networkx as nx  # installed with torch; designing a tree does not need it

        columns = {"rank": self.child_ranks, "depth": self.depths} | attributes
        rows = zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True)
        graph = nx.DiGraph()
        graph.add_nodes_from((node, dict(zip(columns, row, strict=True))) for node, row in enumerate(rows))
        graph.add_edges_from((int(parent), node) for node, parent in enumerate(self.parents) if node)
        return graph

    def down_to(self, depth: int) -> TokenTree:
        """Return the tree without the nodes below a depth; all others keep their numbers."""
        return TokenTree(self.parents[self.depths <= depth])

    @property
    def size(self) -> int:
        """Nodes including the root: tokens in one target pass."""
        return len(self.parents)

    @property
    def level_starts(self) -> list[int]:
        """First node of each level, and n at the end; breadth-first order keeps a level contiguous."""
        last = np.cumsum(self.child_counts).tolist()  # the last child of this node or of one before it
        starts, stop = [0], 1
        while stop < self.size:
            starts.append(stop)
            stop = last[stop - 1] + 1
        return [*starts, self.size]

    @property
    def depths(self) -> np.ndarray:
        """Edges from the root, int32 [n]."""
        starts = self.level_starts
        return np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))

    @property
    def depth(self) -> int:
        """Edges on the longest path = draft passes per step."""
        return len(self.level_starts) - 2

    @property
    def child_ranks(self) -> np.ndarray:
        """Rank of each node among its siblings, from 1; 0 for the root. int32 [n]."""
        first = np.searchsorted(self.parents, self.parents, side="left")
        ranks = (np.arange(self.size) - first + 1).astype(np.int32)
        ranks[0] = 0
        return ranks

    @property
    def levels(self) -> list[np.ndarray]:
        """Node ids of each level, root level first; each int64 [its nodes]."""
        nodes = np.arange(self.size)
        return [nodes[start:stop] for start, stop in pairwise(self.level_starts)]

    @property
    def leaves(self) -> int:
        """Nodes without children."""
        return int((self.child_counts == 0).sum())

    @property
    def child_counts(self) -> np.ndarray:
        """Children of each node, int64 [n]."""
        return np.bincount(self.parents[1:], minlength=self.size)

    def children(self, node: int) -> range:
        """Return the children of a node in rank order."""
        start, stop = np.searchsorted(self.parents, np.array([node, node + 1], dtype=np.int32))
        return range(int(start), int(stop))

    @property
    def ancestor_mask(self) -> np.ndarray:
        """bool [n, n]: row i is true at i and at every ancestor of i."""
        mask = np.eye(self.size, dtype=bool)
        for node in range(1, self.size):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path_to(self, node: int) -> list[int]:
        """Return node ids from the root to `node`, both included."""
        path = [node]
        while path[-1] != 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def paths(self) -> list[tuple[int, ...]]:
        """Return for each node its 1-based ranks from the root down; `()` for the root."""
        ranks = self.child_ranks.tolist()
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, self.size):
            paths.append((*paths[self.parents[node]], ranks[node]))
        return paths

    def shared_with(self, other: TokenTree) -> np.ndarray:
        """Return for each node the node of `other` with the same path of ranks, -1 where there is none; int64 [n]."""
        shared = np.full(self.size, -1, dtype=np.int64)
        shared[0] = 0
        ranks, counts = self.child_ranks, other.child_counts
        first = np.searchsorted(other.parents, np.arange(other.size), side="left")
        for level in self.levels[1:]:
            twins = shared[self.parents[level]]
            exists = (twins >= 0) & (ranks[level] <= counts[twins])
            shared[level[exists]] = first[twins[exists]] + ranks[level[exists]] - 1
        return shared
