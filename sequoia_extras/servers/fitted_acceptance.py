"""Tokens per step of draft chains from totals: without per-position counts, one acceptance rate is fitted.

K = planned positions, r = resamples.
"""

from math import ceil

import numpy as np

from sequoia_core.acceptance.bootstrap import RESAMPLES, interval

from .chain_acceptance import ChainAcceptance, chain_acceptance, coverage_notes, survival_tokens
from .counts import FULL_DRAFTS, MAX_POSITIONS, ServerCounts

# Rejection rate at a position ÷ that at the one before, from recordings and published rates of eight drafters.
REJECTION_TRENDS = (0.65, 1.3)
ROUNDING = 0.02  # relative error of a mean draft length, which may be derived from rounded figures
HALVINGS = 40


def plan_acceptance(
    counts: ServerCounts, *, new_tokens: int | None = None, draft_length: int | None = None
) -> ChainAcceptance:
    """Return the tokens per step of chains from per-position counts if there are any, otherwise from totals.

    Args:
        new_tokens: length of every answer; see `chain_acceptance`.
        draft_length: the server's K, needed for sources that contain only averages.
    """
    counted = counts.positions and counts.drafts and not counts.censored
    if counted or counts.drafts == 0:
        return chain_acceptance(counts, new_tokens=new_tokens)
    if draft_length is not None and not 1 <= draft_length <= MAX_POSITIONS:
        raise ValueError(f"draft length: found {draft_length}, expected 1 to {MAX_POSITIONS:,}")
    drafts, accepted, drafted = _per_draft(counts, draft_length)
    return _fit(counts, drafts, accepted, drafted, draft_length)


def _per_draft(counts: ServerCounts, draft_length: int | None) -> tuple[int | None, float, float]:
    """Return the number of drafts, if known, and the accepted and drafted tokens per draft."""
    drafts = counts.drafts or counts.all_steps
    if not drafts and draft_length and counts.draft_tokens:
        drafts = ceil(counts.draft_tokens / draft_length)
    if drafts and counts.draft_tokens and counts.accepted_tokens is not None:
        if counts.draft_tokens > MAX_POSITIONS * drafts:
            found = f"found {counts.draft_tokens:,} tokens in {drafts:,} drafts"
            raise ValueError(f"{found}, expected at most {MAX_POSITIONS:,} each")
        return drafts, counts.accepted_tokens / drafts, counts.draft_tokens / drafts
    source = f"found only {counts.source} from {counts.engine}"
    if draft_length is None:
        raise ValueError(f"{source}, expected also the draft length K: give it (--draft-length)")
    if counts.mean_length is None:
        raise ValueError(f"{source}, expected also the number of drafts or the tokens per step")
    return None, counts.mean_length - 1, float(draft_length)


def _fit(
    counts: ServerCounts, drafts: int | None, accepted: float, drafted: float, draft_length: int | None
) -> ChainAcceptance:
    """Fit one acceptance rate to the accepted tokens per draft; the interval covers other shapes with the same total.

    Resamples differ in the total, in the trend along the draft, and in what the end of a short draft means: a token
    that would have been rejected, or the same acceptance as before.
    """
    longest = draft_length or max(len(counts.positions), ceil((1 - ROUNDING) * drafted), 1)
    if accepted > longest:
        raise ValueError(
            f"draft length: found {longest} with {accepted + 1:.2f} tokens per step, expected at least {ceil(accepted)}"
        )
    filled = np.clip(drafted - np.arange(longest), 0.0, 1.0)  # share of drafts that reach each position
    short = drafted < FULL_DRAFTS * longest
    certain = 1 - (1 - filled) / 2 if short else np.ones(longest)
    survival = _solve(np.array([accepted]), np.ones(1), certain[None])[0]

    random = np.random.default_rng(0)
    variance = survival @ np.arange(1, 2 * longest, 2) - survival.sum() ** 2
    error = (max(float(variance), 0.0) / drafts) ** 0.5 if drafts else 0.0
    totals = random.normal(accepted, error, RESAMPLES)
    falling, rising = np.log(REJECTION_TRENDS)
    trends = np.exp(random.uniform(falling, rising, RESAMPLES))
    ends = random.uniform(size=(RESAMPLES, 1)) if short else np.zeros((RESAMPLES, 1))
    weights = 1 - ends * (1 - filled)
    again = _solve(np.clip(totals, 0.0, weights.sum(axis=1)), trends, weights)
    low, high = interval(again)

    rate = float(survival[0])
    notes = [
        *counts.notes,
        f"An acceptance of {rate:.0%} at every position is fitted to the totals. The intervals cover acceptance that "
        "rises or falls along the draft.",
    ]
    if short:
        notes.append(
            f"Drafts are {drafted:.1f} tokens long on average, so many end early. The plan is for drafts of a fixed "
            "length K."
        )
    notes += coverage_notes(counts)
    tokens, samples = (survival_tokens(part, counts.drafted_share) for part in (survival, again))
    return ChainAcceptance(
        survival,
        np.minimum(low, survival),
        np.maximum(high, survival),
        tokens,
        samples,
        by_request=False,
        counts=counts,
        notes=tuple(notes),
        fitted=rate,
    )


def _solve(accepted: np.ndarray, trends: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the survival whose weighted sum is `accepted`, float64 [r, K], by bisection.

    The rejection rate changes by the factor `trends`, [r], from each position to the next; `weights`, [r, K], is the
    share of drafts that reach each position.
    """
    growth = trends[:, None] ** np.arange(weights.shape[1])
    low, high = np.zeros(len(accepted)), np.ones(len(accepted))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        survival = np.cumprod(1 - np.minimum(middle[:, None] * growth, 1.0), axis=1)
        enough = (weights * survival).sum(axis=1) > accepted
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.cumprod(1 - np.minimum(((low + high) / 2)[:, None] * growth, 1.0), axis=1)
