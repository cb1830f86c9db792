"""Baseline trees: chains, complete trees, beams, and Medusa's best-first rule."""

import heapq
from collections.abc import Sequence

import numpy as np

from ..acceptance.vector import AcceptanceVector
from .optimal import MAX_NODES, Acceptance, best_first, check_shape, check_whole_number, rows_by_levels_left
from .tree import TokenTree

# Number of children of each inner node, breadth-first, in the tree that Medusa published for its 7B models:
# `mc_sim_7b_63` of https://github.com/FasterDecoding/Medusa/blob/e2a5d20/medusa/model/medusa_choices.py.
MEDUSA_CHILDREN = "10 10 7 3 2 1 1 1 1 1 1 10 3 2 1 1 1 1 1 0 0 2 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 2"
DEFAULT_CHAIN_LENGTH = 3  # used before anything is measured; short enough to cost little with any draft


def medusa_tree() -> TokenTree:
    """Return Medusa's published tree of 64 nodes."""
    children = [int(count) for count in MEDUSA_CHILDREN.split()]
    return TokenTree(np.array([-1, *np.repeat(np.arange(len(children)), children)]))


def chain_tree(length: int) -> TokenTree:
    """Return a chain of `length` drafted tokens (Leviathan et al.), with n = length + 1 and d = length."""
    return independent_chains(1, length)


def chain_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - p1), the upper limit on tokens per step for a chain; inf if p1 = 1."""
    return k_ary_limit(acceptance, 1)


def independent_chains(count: int, length: int) -> TokenTree:
    """Return `count` chains of `length` tokens that share only the root (SpecInfer's k x l tree)."""
    return branching_tree([count, *[1] * (length - 1)] if length else [])


def chains_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 + sum p / (1 - p1), the upper limit on tokens per step for independent chains."""
    return 1.0 + float(acceptance.probs.sum()) * chain_limit(acceptance)


def best_chains(acceptance: AcceptanceVector, *, size: int, depth: int) -> TokenTree:
    """Return independent chains, within this size and depth, with the highest expected number of tokens."""
    counts = np.arange(1, min(len(acceptance), size - 1) + 1)
    if not counts.size:
        return chain_tree(0)
    lengths = np.minimum(depth, (size - 1) // counts)
    # tokens[l - 1] is the expected number of tokens from a chain of length l whose first token is accepted.
    tokens = np.cumsum(acceptance.probs[0] ** np.arange(depth))
    best = int(np.argmax(np.cumsum(acceptance.probs)[counts - 1] * tokens[lengths - 1]))
    return independent_chains(int(counts[best]), int(lengths[best]))


def tree_limit(acceptance: AcceptanceVector) -> float:
    """Return 1 / (1 - sum p), the upper limit on tokens per step for any tree; inf if the sum is 1.

    For acceptance by depth, start from the limit for the last row and add one level for each row before it.
    """
    *above, last = np.minimum(acceptance.levels.sum(axis=1), 1.0).tolist()
    limit = 1.0 / (1.0 - last) if last < 1.0 else float("inf")
    for accepted in reversed(above):
        limit = 1.0 + accepted * limit if accepted else 1.0
    return limit


def branching_tree(branching: Sequence[int]) -> TokenTree:
    """Return the tree in which every node at level i has `branching[i]` children."""
    parents = [np.array([-1])]
    level = np.array([0])
    for factor in branching:
        check_whole_number("branching", factor, 1, MAX_NODES)
        if len(level) * factor > MAX_NODES:
            raise ValueError(f"branching: found {branching}, expected at most {MAX_NODES} nodes")
        parents.append(np.repeat(level, factor))
        level = level[-1] + 1 + np.arange(len(level) * factor)
    return TokenTree(np.concatenate(parents))


def k_ary_limit(acceptance: AcceptanceVector, k: int) -> float:
    """Return 1 / (1 - p1 - … - pk), the upper limit on tokens per step for a k-ary tree; inf if the sum is 1."""
    accepted = float(acceptance.probs[:k].sum())
    return 1.0 / (1.0 - accepted) if accepted < 1.0 else float("inf")


def k_ary_tree(k: int, depth: int) -> TokenTree:
    """Return the complete k-ary tree of the given depth."""
    return branching_tree([k] * depth)


def best_first_tree(acceptance: Acceptance, *, size: int, depth: int | None = None) -> TokenTree:
    """Build a tree by repeatedly adding the most likely node (Medusa's rule); optimal if ranks never increase."""
    size, depth = check_shape(size, depth)
    grown = best_first(rows_by_levels_left(acceptance, depth), size)
    return TokenTree.from_links(grown.parents, grown.ranks)[0]


def beam_tree(acceptance: Acceptance, *, width: int, depth: int) -> TokenTree:
    """Return the tree of a beam search: each level has the `width` most likely children of the level above."""
    check_whole_number("depth", depth, 0, MAX_NODES)
    check_whole_number("width", width, 1, (MAX_NODES - 1) // max(depth, 1))
    parents = [-1]
    ranks = [0]
    level = [0]
    scores = [1.0]
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
