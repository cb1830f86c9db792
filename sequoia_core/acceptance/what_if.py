"""Vectors that were not measured: smoothed, edited, assumed, or corrected by a run. B = ranks."""

from dataclasses import replace
from typing import Any

import numpy as np

from .conditions import MAX_RANKS
from .vector import AcceptanceVector

PRIOR_NODES = 30.0  # a run's correction weights the current vector like this many drafted nodes


def isotonic(vector: AcceptanceVector) -> AcceptanceVector:
    """Return the closest vector (least squares) whose probabilities never increase with rank; the sum is preserved."""
    from scipy.optimize import isotonic_regression  # importing takes a second

    fitted = np.clip([isotonic_regression(row, increasing=False).x for row in vector.levels], 0.0, 1.0)
    moved = int((np.abs(fitted - vector.levels) > 1e-12).sum())
    derived = _derived(
        vector,
        fitted[0],
        {"smoothing": "isotonic", "smoothed_ranks": moved},
        f"smoothed by isotonic regression: {moved} of {fitted.size} ranks changed so that none exceeds the one before",
    )
    return replace(derived, by_depth=AcceptanceVector.from_levels(fitted).by_depth)


def power_law_tail(vector: AcceptanceVector, *, start: int) -> AcceptanceVector:
    """Replace ranks from `start` (at least 2) on with a fitted power law: P(first k all rejected) ~ k^-b.

    The curve starts at the measured probability that all ranks before `start` are rejected, so the sum stays below 1.
    """
    if not 2 <= start <= len(vector):
        raise ValueError(f"start: found {start}, expected a rank from 2 to {len(vector)}, the length of the vector")
    fit = vector.fit_power_law(first=start - 1)
    k = np.arange(start - 1, len(vector) + 1)
    rejected = (1.0 - vector.probs[: start - 1].sum()) * (k / (start - 1.0)) ** -max(fit.b, 0.0)
    return _derived(
        vector,
        np.concatenate([vector.probs[: start - 1], rejected[:-1] - rejected[1:]]),
        {"smoothing": "power-law tail", "start": start, "b": fit.b, "r_squared": fit.r_squared},
        f"ranks {start} to {len(vector)} replaced with a power law: P(all k rejected) ~ k^-{fit.b:.2f}, R² "
        f"{fit.r_squared:.2f}",
    )


def power_law(p1: float, b: float, ranks: int = 32) -> AcceptanceVector:
    """Return an assumed vector with P(first k all rejected) = (1 - p1) k^-b, the paper's b-power law."""
    if not 0.0 <= p1 <= 1.0:
        raise ValueError(f"p1: found {p1}, expected a probability from 0 to 1")
    if not 0.0 <= b <= 10.0:
        raise ValueError(f"b: found {b}, expected a number from 0 to 10")
    if not 1 <= ranks <= MAX_RANKS:
        raise ValueError(f"ranks: found {ranks}, expected 1 to {MAX_RANKS}")
    rejected = (1.0 - p1) * np.arange(1, ranks + 1) ** -float(b)
    return AcceptanceVector(
        np.append(p1, rejected[:-1] - rejected[1:]),
        meta={"source": f"assumed: power law with p1 = {p1:g}, b = {b:g}", "p1": p1, "b": b},
    )


def weaker(vector: AcceptanceVector, share: float) -> AcceptanceVector:
    """Return the vector of a draft that is equally good at a `share` of positions and never accepted elsewhere."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share: found {share}, expected a number from 0 to 1")
    assumed = _derived(
        vector,
        vector.probs * share,
        {"share": share},
        f"assumed: a draft that is equally good at {share:.0%} of positions and never accepted elsewhere",
    )
    return replace(assumed, holds_for=None)  # this draft was not measured


def edited(vector: AcceptanceVector, probs: np.ndarray) -> AcceptanceVector:
    """Return the vector with probabilities entered by hand and without its sample."""
    changed = _derived(vector, np.asarray(probs, dtype=np.float64), {"edited": True}, "edited by hand")
    return replace(changed, holds_for=None)  # these numbers were not measured


def corrected(acceptance: AcceptanceVector, drafted: np.ndarray, accepted: np.ndarray) -> AcceptanceVector:
    """Return the mean of a vector and a run's rates from `count_ranks`, weighted by how often each rank was drafted.

    Ranks that were never drafted keep their value unless the sum would exceed 1. The result has no intervals.
    """
    ranks = max(len(acceptance), len(drafted))
    prior, drafted, accepted = (
        np.pad(np.asarray(values, dtype=np.float64), (0, ranks - len(values)))
        for values in (acceptance.probs, drafted, accepted)
    )
    probs = (PRIOR_NODES * prior + accepted) / (PRIOR_NODES + drafted)
    seen = drafted > 0
    probs[seen] /= max(probs[seen].sum(), 1.0)
    free = max(1.0 - probs[seen].sum(), 0.0)
    unseen = prior[~seen].sum()
    if unseen:
        probs[~seen] = prior[~seen] * min(1.0, free / unseen)
    return _derived(acceptance, probs, {"corrected_by_nodes": int(drafted.max(initial=0))}, "")


def _derived(vector: AcceptanceVector, probs: np.ndarray, meta: dict[str, Any], note: str) -> AcceptanceVector:
    """Return a derived vector without a sample, because the measured vector's intervals do not apply to it."""
    return AcceptanceVector(
        probs,
        holds_for=vector.holds_for,
        meta={**vector.meta, **meta},
        note="; ".join(text for text in (vector.note, note) if text),
    )
