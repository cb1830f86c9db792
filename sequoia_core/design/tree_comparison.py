"""Trees compared under one vector and under others, plain trees nearest to a tree, one node. n, m = tree nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import expected_tokens, node_scores, optimal_tree
from .plain_trees import beam_tree, best_first_tree, branching_tree, chain_tree, independent_chains
from .tree import TokenTree

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class TreeDifference:
    """What another tree has that one tree lacks, and the other way round.

    Args:
        shared: bool [n], nodes of the one whose path the other has as well.
        other_shared: bool [m], nodes of the other whose path the one has as well.
        dropped_tokens: sum of f(v) over the nodes that only the one has; added_tokens: that only the other has.
    """

    shared: np.ndarray
    other_shared: np.ndarray
    dropped_tokens: float
    added_tokens: float

    @property
    def dropped(self) -> int:
        """How many nodes only the one tree has."""
        return int((~self.shared).sum())

    @property
    def added(self) -> int:
        """How many nodes only the other tree has."""
        return int((~self.other_shared).sum())


def compare_trees(tree: TokenTree, other: TokenTree, acceptance: AcceptanceVector) -> TreeDifference:
    """Compare two trees node by node, by their paths of ranks, under one acceptance vector."""
    shared, other_shared = tree.shared_with(other) >= 0, other.shared_with(tree) >= 0
    return TreeDifference(
        shared=shared,
        other_shared=other_shared,
        dropped_tokens=float(node_scores(tree, acceptance)[~shared].sum()),
        added_tokens=float(node_scores(other, acceptance)[~other_shared].sum()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Regret:
    """What trees lose where another of k vectors holds than the one they were designed for.

    Args:
        lost: float64 [k, k]; [i, j] = tokens per step that vector i's best tree loses under vector j.
        best: float64 [k], what each vector's own best tree yields.
    """

    lost: np.ndarray
    best: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The loss as a part of what the vector's own tree yields, float64 [k, k]."""
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
        return float(self.lost.sum()) / (len(self.best) * (len(self.best) - 1))

    def to_frame(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the losses: a row for each tree, a column for each vector that holds."""
        import pandas as pd

        return pd.DataFrame(self.lost, pd.Index(names, name="tree for \\ used under"), names)


def regret_matrix(vectors: Sequence[AcceptanceVector], *, size: int, depth: int) -> Regret:
    """Evaluate the best tree, of `size` nodes and at most `depth`, of each vector under every other."""
    ranks = max(len(vector) for vector in vectors)  # ranks that a vector lacks have probability 0, but may be drafted
    padded = [AcceptanceVector(np.pad(vector.probs, (0, ranks - len(vector)))) for vector in vectors]
    trees = [optimal_tree(vector, size=size, depth=depth) for vector in padded]
    tokens = np.array([[expected_tokens(tree, vector) for vector in padded] for tree in trees])
    return Regret(lost=np.maximum(np.diag(tokens)[None, :] - tokens, 0.0), best=np.diag(tokens).copy())


def _width(tree: TokenTree) -> int:
    """Return how many nodes a level of a tree has that spreads them evenly."""
    return max((tree.size - 1) // max(tree.depth, 1), 1)


# name -> the plain tree nearest to a tree's size and depth, never larger than one of two nodes or more
NEAREST_SHAPES: dict[str, Callable[[TokenTree, AcceptanceVector], TokenTree]] = {
    "chain": lambda tree, _: chain_tree(tree.depth),
    "chains": lambda tree, _: independent_chains(_width(tree), min(max(tree.depth, 1), max(tree.size - 1, 1))),
    "beam": lambda tree, acceptance: beam_tree(acceptance, width=_width(tree), depth=max(tree.depth, 1)),
    "binary": lambda tree, _: branching_tree([2] * max(int(math.log2(tree.size + 1)) - 1, 0)),
    "best first": lambda tree, acceptance: best_first_tree(acceptance, size=tree.size, depth=max(tree.depth, 1)),
}


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
    """Choose among the trees of a run: each topology once, and int [steps], which of them each step had."""
    if not len(shown):
        raise ValueError("shown: found no steps, expected at least one")
    counts = np.bincount(np.asarray(shown), minlength=len(trees))
    seen = np.flatnonzero(counts)
    drafted = [trees[index] for index in seen.tolist()]
    sizes = np.array([tree.size for tree in drafted])
    widths = np.array([max(len(level) for level in tree.levels) for tree in drafted])
    depths = np.array([tree.depth for tree in drafted])
    median = np.quantile(np.repeat(sizes, counts[seen]), 0.5, method="lower")

    def most_frequent(chosen: np.ndarray) -> TokenTree:
        return trees[int(max(seen[chosen], key=lambda index: counts[index]))]

    occurred, size_index = np.unique(sizes, return_inverse=True)
    return Gallery(
        typical=most_frequent(sizes == median),
        widest=most_frequent(widths == widths.max()),
        deepest=most_frequent(depths == depths.max()),
        sizes=occurred,
        steps=np.bincount(size_index, weights=counts[seen]).astype(np.int64),
    )


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node of a tree under an acceptance vector.

    Args:
        rank, depth: 0 and 0 for the root.
        ranks: of the path from the root; empty for the root.
        probability: p[rank], 1 for the root.
        score: f(v), the probability that it is accepted.
        children, below: number of children, and of all descendants.
        subtree_tokens: sum of f over the node and all its descendants.
    """

    rank: int
    depth: int
    ranks: tuple[int, ...]
    probability: float
    score: float
    children: int
    below: int
    subtree_tokens: float


def node_facts(tree: TokenTree, acceptance: AcceptanceVector, node: int) -> NodeFacts:
    """Describe one node, numbered breadth-first from the root 0."""
    import networkx as nx

    scores, rank = node_scores(tree, acceptance), int(tree.child_ranks[node])
    below = sorted(nx.descendants(tree.to_networkx(), node))
    return NodeFacts(
        rank=rank,
        depth=int(tree.depths[node]),
        ranks=tuple(int(tree.child_ranks[v]) for v in tree.path_to(node)[1:]),
        probability=float(acceptance.probs[rank - 1]) if 0 < rank <= len(acceptance) else float(rank == 0),
        score=float(scores[node]),
        children=len(tree.children(node)),
        below=len(below),
        subtree_tokens=float(scores[[node, *below]].sum()),
    )
