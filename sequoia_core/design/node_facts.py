"""Facts about one node of a tree under an acceptance vector."""

from __future__ import annotations

from dataclasses import dataclass

from .acceptance import AcceptanceVector
from .optimal_trees import node_scores
from .tree import TokenTree


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
