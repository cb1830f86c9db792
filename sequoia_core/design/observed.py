"""The acceptance that a run showed, as a correction of the vector in use. B = ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from .acceptance import AcceptanceVector
from .tree import TokenTree

PRIOR_NODES = 30.0  # the vector in use counts as this many nodes of the run


def count_ranks(steps: Iterable[tuple[TokenTree, Sequence[int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Count acceptance by rank over steps, each a tree and its accepted path, node ids from the root.

    Returns int64 [B]: nodes on accepted paths that had a child of each rank, and how many of those were accepted. Only
    for trees that do not depend on the draft's probabilities: otherwise uncertain nodes have the many children.
    """
    drafted: list[int] = []
    accepted: list[int] = []
    for tree, path in steps:
        for node, below in zip(path, [*path[1:], None], strict=True):
            children = int(tree.child_counts[node])
            longer = [0] * (children - len(drafted))
            drafted, accepted = drafted + longer, accepted + longer
            for rank in range(children):
                drafted[rank] += 1
            if below is not None:
                accepted[int(tree.child_ranks[below]) - 1] += 1
    return np.array(drafted, dtype=np.int64), np.array(accepted, dtype=np.int64)


def corrected(acceptance: AcceptanceVector, drafted: np.ndarray, accepted: np.ndarray) -> AcceptanceVector:
    """Return the mean of a vector and of a run's `count_ranks`, each rank weighted by how often it was drafted.

    Ranks that were never drafted keep their value, as far as the sum of 1 allows. The result has no intervals.
    """
    ranks = max(len(acceptance), len(drafted))
    prior, drafted, accepted = (_padded(values, ranks) for values in (acceptance.probs, drafted, accepted))
    probs = (PRIOR_NODES * prior + accepted) / (PRIOR_NODES + drafted)
    seen = drafted > 0
    probs[seen] /= max(probs[seen].sum(), 1.0)
    room, kept = max(1.0 - probs[seen].sum(), 0.0), prior[~seen].sum()
    probs[~seen] = prior[~seen] * (min(1.0, room / kept) if kept else 1.0)
    return replace(
        acceptance, probs=probs, trials=None, prompt_sums=None, prompt_trials=None, prompt_ranks=None,
        prompt_matched=None,
        meta={**acceptance.meta, "corrected_by_nodes": int(drafted.max(initial=0))}, calibration=None,
    )  # fmt: skip


def _padded(values: np.ndarray, ranks: int) -> np.ndarray:
    return np.pad(np.asarray(values, dtype=np.float64), (0, ranks - len(values)))
