"""Replay a tree on texts whose accepted ranks are known. m = prompts, n = nodes, B = ranks."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..acceptance.vector import AcceptanceVector
from .tree import TokenTree

NO_NODE = np.iinfo(np.int64).max


class Replay(NamedTuple):
    """Tokens and steps when each prompt's text is decoded with one tree.

    Attributes:
        tokens: int64 [m], length of each text.
        steps: int64 [m], target passes needed for each text.
    """

    tokens: np.ndarray
    steps: np.ndarray

    @property
    def tokens_per_step(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())


def replay(tree: TokenTree, acceptance: AcceptanceVector) -> Replay | None:
    """Simulate decoding a vector's texts with a tree; return None if the vector does not store their accepted ranks.

    Ranks beyond those measured count as rejected.
    """
    replays = replay_while_growing(tree.parents, tree.child_ranks, [tree.size], acceptance)
    return None if replays is None else replays[0]


def replay_while_growing(
    parents: np.ndarray, ranks: np.ndarray, sizes: Sequence[int], acceptance: AcceptanceVector
) -> list[Replay] | None:
    """Replay the tree of the first n nodes for each n in `sizes`; return None if the vector stores no accepted ranks.

    Args:
        parents, ranks: int [n], ordered so that parents and elder siblings come first.
    """
    by_depth = acceptance.by_depth
    prompt_ranks = acceptance.prompt_ranks if by_depth is None else by_depth.prompt_ranks
    if prompt_ranks is None:
        return None
    texts = [np.atleast_2d(accepted) for accepted in prompt_ranks if accepted.size]
    lengths = np.array([text.shape[1] for text in texts])
    # Concatenate the texts, each followed by a zero, because nothing is accepted after the end of a text.
    rows = np.concatenate([np.pad(text, ((0, 0), (0, 1))) for text in texts], axis=1).astype(np.int64)
    count = rows.shape[1]
    ends = np.cumsum(lengths + 1) - 1
    nodes = _accepted_nodes(_children_by_rank(parents, ranks, max(int(rows.max()), 1)), rows)
    replays = []
    for size in sizes:
        advance = np.ones(count, dtype=np.int64)  # the bonus token
        for level in nodes:
            advance += level < size
        at = ends - lengths
        steps = np.zeros(len(lengths), dtype=np.int64)
        while (unfinished := at < ends).any():
            steps += unfinished
            at = np.where(unfinished, at + advance[np.minimum(at, count - 1)], at)
        replays.append(Replay(lengths, steps))
    return replays


def _accepted_nodes(children: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Return the node accepted by a step that begins at each position, one int64 [positions] per depth."""
    levels: list[np.ndarray] = []
    count = rows.shape[1]
    start = np.arange(count)
    node = np.zeros(count, dtype=np.int64)
    while True:
        position = np.minimum(start + len(levels), count - 1)
        child = children[node, rows[min(len(levels), len(rows) - 1), position]]
        start, node = start[child > 0], child[child > 0]
        if not len(start):
            return levels
        level = np.full(count, NO_NODE)
        level[start] = node
        levels.append(level)


def _children_by_rank(parents: np.ndarray, node_ranks: np.ndarray, ranks: int) -> np.ndarray:
    """Return each node's child of each rank, int64 [n, ranks + 1]; 0 if it has none, as in column 0."""
    table = np.zeros((len(parents), ranks + 1), dtype=np.int64)
    nodes = np.flatnonzero((node_ranks >= 1) & (node_ranks <= ranks))
    table[parents[nodes], node_ranks[nodes]] = nodes
    return table


def count_ranks(steps: Iterable[tuple[TokenTree, Sequence[int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Count drafted and accepted children by rank, given each step's tree and accepted path from the root.

    Valid only for trees that do not depend on the draft's probabilities; in others, uncertain nodes get more children.

    Returns:
        int64 [B] each: number of accepted nodes that had a child of each rank, and how often that child was accepted.
    """
    drafted: list[int] = []
    accepted: list[int] = []
    for tree, path in steps:
        for node in path:
            drafted += range(1, len(tree.children(node)) + 1)
        accepted += tree.child_ranks[list(path[1:])].tolist()
    ranks = max(drafted, default=0) + 1
    return np.bincount(drafted, minlength=ranks)[1:], np.bincount(accepted, minlength=ranks)[1:]
