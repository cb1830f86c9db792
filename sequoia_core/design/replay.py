"""What a tree would have decoded along texts whose accepted ranks are known. m = prompts, n = nodes, W = ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .tree import TokenTree


class Replay(NamedTuple):
    """Decoding of each prompt's text with one tree.

    Attributes:
        tokens: int64 [m], positions of each text.
        steps: int64 [m], target passes that they take.
    """

    tokens: np.ndarray
    steps: np.ndarray

    @property
    def tokens_per_step(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())


def replay(tree: TokenTree, acceptance: AcceptanceVector) -> Replay | None:
    """Decode the texts behind a vector with a tree; None where the vector does not keep their accepted ranks.

    Ranks beyond those measured count as rejected.
    """
    texts = _ranks_by_depth(acceptance)
    return None if texts is None else _replays(tree.parents, tree.child_ranks, [tree.size], texts)[0]


def replay_while_growing(
    parents: np.ndarray, ranks: np.ndarray, sizes: Sequence[int], acceptance: AcceptanceVector
) -> list[Replay] | None:
    """Replay the trees of the first nodes of one order, one for each of `sizes`; None where texts are not kept.

    `parents`, `ranks` int [n]: in an order in which parents and elder siblings come first.
    """
    texts = _ranks_by_depth(acceptance)
    return None if texts is None else _replays(parents, ranks, sizes, texts)


def _ranks_by_depth(acceptance: AcceptanceVector) -> list[np.ndarray] | None:
    """Return the accepted ranks of each text, int [L, positions]; None where they are not kept."""
    deeper = acceptance.by_depth
    kept = acceptance.prompt_ranks if deeper is None else deeper.prompt_ranks
    return None if kept is None else [np.atleast_2d(ranks) for ranks in kept]


def _replays(
    parents: np.ndarray, ranks: np.ndarray, sizes: Sequence[int], prompt_ranks: Sequence[np.ndarray]
) -> list[Replay]:
    prompt_ranks = [accepted for accepted in prompt_ranks if accepted.shape[1]]
    lengths = np.array([accepted.shape[1] for accepted in prompt_ranks])
    # All texts in one row, a zero after each: after the end of a text nothing is accepted.
    rows = np.concatenate([np.pad(accepted, ((0, 0), (0, 1))) for accepted in prompt_ranks], axis=1).astype(np.int64)
    ends, row = np.cumsum(lengths + 1) - 1, rows[0]
    nodes = _accepted_nodes(_children(parents, ranks, max(int(rows.max()), 1)), rows)
    replays = []
    for size in sizes:
        advance = np.ones(len(row), dtype=np.int64)  # the bonus token
        for level in nodes:
            advance += level < size
        at, steps = ends - lengths, np.zeros(len(lengths), dtype=np.int64)
        while (going := at < ends).any():
            steps += going
            at = np.where(going, at + advance[np.minimum(at, len(row) - 1)], at)
        replays.append(Replay(lengths, steps))
    return replays


def _accepted_nodes(below: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Return the node accepted at each depth when a step begins at a position, int64 [positions]; huge for none."""
    nothing = np.iinfo(np.int64).max
    levels: list[np.ndarray] = []
    row = rows[0]
    start, node = np.arange(len(row)), np.zeros(len(row), dtype=np.int64)
    while len(start):
        position = np.minimum(start + len(levels), len(row) - 1)
        child = below[node, rows[min(len(levels), len(rows) - 1), position]]
        start, node = start[child > 0], child[child > 0]
        level = np.full(len(row), nothing)
        level[start] = node
        if len(start):
            levels.append(level)
    return levels


def _children(parents: np.ndarray, own: np.ndarray, ranks: int) -> np.ndarray:
    """Return the child of each node by rank, int64 [n, ranks + 1]; 0 where there is none, as for rank 0."""
    table = np.zeros((len(parents), ranks + 1), dtype=np.int64)
    known = np.flatnonzero((own >= 1) & (own <= ranks))
    table[parents[known], own[known]] = known
    return table
