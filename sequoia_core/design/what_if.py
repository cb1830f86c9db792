"""Vectors that were not measured: smoothed, edited, assumed or corrected by a run. B = ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .acceptance import AcceptanceVector, of_levels
from .conditions import MAX_RANKS
from .tree import TokenTree

PRIOR_NODES = 30.0  # the vector in use counts as this many nodes of the run


def isotonic(vector: AcceptanceVector) -> AcceptanceVector:
    """Return the closest vector (least squares) whose ranks never increase; sums of neighbours are kept."""
    from scipy.optimize import isotonic_regression  # a second to import; only this function needs it

    fitted = np.clip([isotonic_regression(row, increasing=False).x for row in vector.levels], 0.0, 1.0)
    moved = int((np.abs(fitted - vector.levels) > 1e-12).sum())
    by_depth = of_levels(fitted).by_depth
    derived = _derived(
        vector,
        fitted[0],
        {"smoothing": "isotonic", "smoothed_ranks": moved},
        f"smoothed by isotonic regression: {moved} of {fitted.size} ranks moved so that none exceeds the one before",
    )
    return replace(derived, by_depth=by_depth)


def power_law_tail(vector: AcceptanceVector, *, start: int) -> AcceptanceVector:
    """Replace the ranks from `start` on by a power law fitted to how rejection falls there: P(reject all k) ~ k^-b.

    The curve begins at the measured rejection of the ranks kept, so the sum stays below 1. `start` is a rank from 2.
    """
    if not 2 <= start <= len(vector):
        raise ValueError(f"start: found {start}, expected a rank from 2 to {len(vector)}, the length of the vector")
    fit = vector.fit_power_law(first=start - 1)
    k = np.arange(start - 1, len(vector) + 1)
    rejected = (1.0 - vector.probs[: start - 1].sum()) * (k / (start - 1.0)) ** -max(fit.b, 0.0)
    probs = np.concatenate([vector.probs[: start - 1], rejected[:-1] - rejected[1:]])
    return _derived(
        vector,
        probs,
        {"smoothing": "power-law tail", "start": start, "b": fit.b, "r_squared": fit.r_squared},
        f"ranks {start} to {len(vector)} replaced by a power law: P(all k rejected) ~ k^-{fit.b:.2f}, R² "
        f"{fit.r_squared:.2f}",
    )


def power_law(p1: float, b: float, ranks: int = 32) -> AcceptanceVector:
    """Return a supposed vector with P(all k rejected) = (1 - p1) k^-b, the paper's b-power law."""
    if not 0.0 <= p1 <= 1.0:
        raise ValueError(f"p1: found {p1}, expected a probability from 0 to 1")
    if not 0.0 <= b <= 10.0:
        raise ValueError(f"b: found {b}, expected a number from 0 to 10")
    if not 1 <= ranks <= MAX_RANKS:
        raise ValueError(f"ranks: found {ranks}, expected 1 to {MAX_RANKS}")
    rejected = (1.0 - p1) * np.arange(1, ranks + 1) ** -float(b)
    return AcceptanceVector(
        np.append(p1, rejected[:-1] - rejected[1:]),
        meta={"source": f"supposed: power law with p1 = {p1:g}, b = {b:g}", "p1": p1, "b": b},
    )


def weaker(vector: AcceptanceVector, share: float) -> AcceptanceVector:
    """Return the vector of a draft as good on a `share` of the positions and never right on the others."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share: found {share}, expected a number from 0 to 1")
    supposed = _derived(
        vector,
        vector.probs * share,
        {"share": share},
        f"supposed: a draft that is right as often on {share:.0%} of the positions and never on the others",
    )
    return replace(supposed, holds_for=None)  # no such draft was measured


def edited(vector: AcceptanceVector, probs: np.ndarray) -> AcceptanceVector:
    """Return the vector with probabilities typed in by hand, without a sample."""
    changed = _derived(vector, np.asarray(probs, dtype=np.float64), {"edited": True}, "edited by hand")
    return replace(changed, holds_for=None)  # nobody measured these numbers


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
    return _derived(acceptance, probs, {"corrected_by_nodes": int(drafted.max(initial=0))}, "")


def _derived(vector: AcceptanceVector, probs: np.ndarray, meta: dict[str, Any], note: str) -> AcceptanceVector:
    """Return a vector without a sample of its own: intervals of the measured vector do not hold for it."""
    notes = [text for text in (vector.note, note) if text]
    return replace(
        vector,
        probs=probs,
        trials=None,
        prompt_sums=None,
        prompt_ranks=None,
        prompt_matched=None,
        prompt_trials=None,
        calibration=None,
        by_depth=None,
        meta={**vector.meta, **meta},
        note="; ".join(notes),
    )


def _padded(values: np.ndarray, ranks: int) -> np.ndarray:
    return np.pad(np.asarray(values, dtype=np.float64), (0, ranks - len(values)))
