"""Vectors that were not measured: smoothed, edited or assumed ones; each new vector says what was done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .acceptance import AcceptanceVector, PowerLawFit
from .acceptance_files import MAX_RANKS


def isotonic(vector: AcceptanceVector) -> AcceptanceVector:
    """Return the closest vector (least squares) whose ranks never increase; sums of neighbours are kept."""
    from scipy.optimize import isotonic_regression  # a second to import; only this function needs it

    fitted = isotonic_regression(vector.probs, increasing=False).x
    moved = int((np.abs(fitted - vector.probs) > 1e-12).sum())
    return _derived(
        vector,
        np.clip(fitted, 0.0, 1.0),
        {"smoothing": "isotonic", "smoothed_ranks": moved},
        f"smoothed by isotonic regression: {moved} of {len(vector)} ranks moved so that none exceeds the one before",
    )


def power_law_tail(vector: AcceptanceVector, *, start: int = 4, ranks: int | None = None) -> AcceptanceVector:
    """Replace the ranks from `start` on by a power law fitted to how rejection falls there: P(reject all k) ~ k^-b.

    The curve begins at the measured rejection of the ranks kept, so the sum stays below 1.

    Args:
        start: first rank that is replaced, from 2.
        ranks: length of the new vector; None keeps the length.
    """
    if not 2 <= start <= len(vector):
        raise ValueError(f"start: found {start}, expected a rank from 2 to {len(vector)}, the length of the vector")
    ranks = len(vector) if ranks is None else ranks
    if not start <= ranks <= MAX_RANKS:
        raise ValueError(f"ranks: found {ranks}, expected {start} to {MAX_RANKS}")
    fit = tail_fit(vector, start)
    k = np.arange(start - 1, ranks + 1)
    rejected = (1.0 - vector.probs[: start - 1].sum()) * (k / (start - 1.0)) ** -max(fit.b, 0.0)
    probs = np.concatenate([vector.probs[: start - 1], rejected[:-1] - rejected[1:]])
    return _derived(
        vector,
        probs,
        {"smoothing": "power-law tail", "start": start, "b": fit.b, "r_squared": fit.r_squared},
        f"ranks {start} to {ranks} replaced by a power law: P(all k rejected) ~ k^-{fit.b:.2f}, R² {fit.r_squared:.2f}",
    )


def tail_fit(vector: AcceptanceVector, start: int) -> PowerLawFit:
    """Fit the power law on ranks `start - 1` and later only."""
    return vector.fit_power_law(first=start - 1)


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
        meta={**vector.meta, **meta},
        note="; ".join(notes),
    )
