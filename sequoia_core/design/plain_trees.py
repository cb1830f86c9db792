"""Plain trees that an optimal tree is compared with: chains, full trees, beams, Medusa's best-first rule."""

import heapq
from collections.abc import Sequence

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import MAX_NODES, Acceptance, check_whole, rows_by_levels_left
from .tree import TokenTree
from .tree_search import best_first

GUESSED_CHAIN = 4  # drafted tokens where nothing was measured: short enough to lose little with any draft


def chain_tree(length: int) -> TokenTree:
    """Return one chain of `length` drafted tokens (Leviathan et al.): n = length + 1, d = length."""
    return independent_chains(1, length)


def chain_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - p1), the tokens per step that no chain exceeds; inf at p1 = 1."""
    return k_ary_limit(acceptance, 1)


def independent_chains(count: int, length: int) -> TokenTree:
    """Return `count` chains of `length` tokens that share only the root (SpecInfer's k x l tree)."""
    return branching_tree([count, *[1] * (length - 1)] if length else [])


def chains_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 + sum p / (1 - p1), the tokens per step that no number of chains exceeds."""
    reached = float(acceptance.probs.sum())
    return 1.0 + reached / float(1.0 - acceptance.probs[0]) if acceptance.probs[0] < 1.0 else float("inf")


def best_chains(acceptance: AcceptanceVector, *, size: int, depth: int) -> TokenTree:
    """Return the independent chains with the most expected tokens, of at most `size` nodes and `depth` edges."""
    counts = np.arange(1, min(len(acceptance), size - 1) + 1)
    if not counts.size:
        return chain_tree(0)
    lengths = np.minimum(depth, (size - 1) // counts)
    of_one = np.cumsum(acceptance.probs[0] ** np.arange(depth))  # tokens of a chain whose first one is accepted
    best = int(np.argmax(np.cumsum(acceptance.probs)[counts - 1] * of_one[lengths - 1]))
    return independent_chains(int(counts[best]), int(lengths[best]))


def branching_tree(branching: Sequence[int]) -> TokenTree:
    """Return the tree whose every node at level i has `branching[i]` children (a fixed expansion, or a beam)."""
    parents, level = [np.array([-1])], np.array([0])
    for factor in branching:
        check_whole("branching", factor, 1, MAX_NODES)
        if len(level) * factor > MAX_NODES:
            raise ValueError(f"branching: found {branching}, expected at most {MAX_NODES} nodes")
        parents.append(np.repeat(level, factor))
        level = level[-1] + 1 + np.arange(len(level) * factor)
    return TokenTree(np.concatenate(parents))


def k_ary_limit(acceptance: AcceptanceVector, k: int) -> float:
    """Return 1 / (1 - p1 - … - pk), the tokens per step that no tree of k children to a node exceeds; inf at sum 1."""
    accepted = float(acceptance.probs[:k].sum())
    return 1.0 / (1.0 - accepted) if accepted < 1.0 else float("inf")


def k_ary_tree(k: int, depth: int) -> TokenTree:
    """Return the complete k-ary tree of that depth."""
    return branching_tree([k] * depth)


def best_first_tree(acceptance: Acceptance, *, size: int, depth: int | None = None) -> TokenTree:
    """Return the tree that grows by the most likely next node (the rule by which Medusa's trees are chosen).

    Optimal when ranks never increase.
    """
    size = check_whole("size", size, 1, MAX_NODES)
    depth = size - 1 if depth is None else min(check_whole("depth", depth, 0, MAX_NODES), size - 1)
    grown = best_first(rows_by_levels_left(acceptance, depth), size)
    return TokenTree.from_links(grown.parents, grown.ranks)[0]


def beam_tree(acceptance: Acceptance, *, width: int, depth: int) -> TokenTree:
    """Return the tree of a beam search: at every level the `width` most likely nodes below those of the level above."""
    check_whole("depth", depth, 0, MAX_NODES)
    check_whole("width", width, 1, (MAX_NODES - 1) // max(depth, 1))
    parents, ranks, level, scores = [-1], [0], [0], [1.0]
    for row in rows_by_levels_left(acceptance, depth)[::-1]:
        probs = row.tolist()
        heap = [(-scores[node] * probs[0], node, 1) for node in level]
        heapq.heapify(heap)
        level = []
        while heap and len(level) < width:
            negative, parent, rank = heapq.heappop(heap)
            level.append(len(parents))
            parents.append(parent)
            ranks.append(rank)
            scores.append(-negative)
            if rank < len(probs):
                heapq.heappush(heap, (-scores[parent] * probs[rank], parent, rank + 1))
    return TokenTree.from_links(np.array(parents), np.array(ranks))[0]
