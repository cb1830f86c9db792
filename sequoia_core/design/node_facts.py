"""Facts about one node of a tree under an acceptance vector, and the sum over its subtree. n = tree nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import node_scores
from .tree import TokenTree


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node of a tree under an acceptance vector.

    Args:
        rank, depth: 0 and 0 for the root.
        ranks: of the path from the root, this node's last; empty for the root.
        probability: p[rank], 1 for the root.
        score: f(v), how likely it is accepted.
        children, below: nodes right below it, and below it at any depth.
        worth: sum of f over the node and all its descendants: the tokens per step that its subtree adds.
    """

    rank: int
    depth: int
    ranks: tuple[int, ...]
    probability: float
    score: float
    children: int
    below: int
    worth: float


def node_facts(tree: TokenTree, acceptance: AcceptanceVector, node: int) -> NodeFacts:
    """Describe one node, numbered breadth-first from the root 0."""
    scores, rank = node_scores(tree, acceptance), int(tree.child_ranks[node])
    return NodeFacts(
        rank=rank,
        depth=int(tree.depths[node]),
        ranks=tuple(int(tree.child_ranks[v]) for v in tree.path_to(node)[1:]),
        probability=float(acceptance.probs[rank - 1]) if 0 < rank <= len(acceptance) else float(rank == 0),
        score=float(scores[node]),
        children=len(tree.children(node)),
        below=int(subtree_sums(tree, np.ones(tree.size))[node]) - 1,
        worth=float(subtree_sums(tree, scores)[node]),
    )


def subtree_sums(tree: TokenTree, values: np.ndarray) -> np.ndarray:
    """Return for each node the sum of `values`, float [n], over it and its descendants, float64 [n]."""
    sums = np.array(values, dtype=np.float64)
    for level in reversed(tree.levels[1:]):
        np.add.at(sums, tree.parents[level], sums[level])
    return sums
