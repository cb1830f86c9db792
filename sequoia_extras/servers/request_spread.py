"""Variation of acceptance across requests, prompt lengths and periods of a source. m = number of requests."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import exact_interval

from .counts import RequestTotals, ServerCounts, add_counts

RULE_FALSE_ALARM = 0.01  # false alarm rate if the true value is at the threshold; healthy drafts are further away
MIN_REQUESTS = 8  # with fewer, even the most extreme split into halves has a probability above 1 / 70
LENGTH_PARTS = 3
SHUFFLES = 2000
# Acceptance falls with prompt length if long prompts have less than this fraction of the acceptance of short ones
# (ik_llama.cpp#2296: .22 at 12K tokens, .8 at 1K; vllm#47602: .6).
FAULTY_RATIO = 2 / 3
MIN_FIRST_RATE = 0.2  # share of drafts whose first token is accepted; healthy heads reach .5 to .85
COLLAPSE_RATIO = 0.5  # a stretch counts as collapsed below this share of the rest's acceptance
SHOWN_PARTS = 3
ROUNDING = 0.01  # of an average in a log
MAX_STRETCHES = 64  # maximum number of periods compared; beyond it, neighbouring ones are merged


class Spread(NamedTuple):
    """Tokens per step over requests: mean, standard deviation as a share of the mean, minimum and maximum."""

    mean: float
    deviation: float
    least: float
    most: float
    requests: int

    def __str__(self) -> str:
        return (
            f"Over {self.requests} requests, tokens per step are {self.mean:.2f} on average, with a standard deviation "
            f"of {self.deviation:.0%} and a range of {self.least:.2f} to {self.most:.2f}."
        )


class LengthPart(NamedTuple):
    """Requests with prompts of `shortest` to `longest` tokens."""

    shortest: int
    longest: int
    tokens_per_step: float
    requests: int


class Collapse(NamedTuple):
    """The part of a source that accepts far fewer drafts than the rest, and that rest."""

    low: ServerCounts
    rest: ServerCounts


class LongPrompts(NamedTuple):
    """Tokens accepted per step with prompts of up to `middle` tokens and with longer ones, and the p-value."""

    short: float
    long: float
    middle: int
    p_value: float


def spread(totals: Sequence[RequestTotals]) -> Spread | None:
    """Return the spread of tokens per step across requests; None if fewer than two have steps."""
    per_step = np.array([1 + each.accepted / each.steps for each in totals if each.steps])
    if len(per_step) < 2:
        return None
    mean = float(per_step.mean())
    return Spread(mean, float(per_step.std(ddof=1)) / mean, float(per_step.min()), float(per_step.max()), len(per_step))


def by_prompt_length(totals: Sequence[RequestTotals]) -> list[LengthPart]:
    """Return the tokens per step of each third of the requests by prompt length; empty if too few lengths are known."""
    known = _by_length(totals)
    if len(known) < MIN_REQUESTS:
        return []
    parts = np.array_split(known, LENGTH_PARTS)
    if any(before[-1, 0] >= after[0, 0] for before, after in pairwise(parts)):
        return []  # too many prompts have the same length
    return [LengthPart(int(p[0, 0]), int(p[-1, 0]), 1 + float(p[:, 1].sum() / p[:, 2].sum()), len(p)) for p in parts]


def compare_long_prompts(totals: Sequence[RequestTotals]) -> LongPrompts | None:
    """Compare long prompts with short ones; None if too few lengths are known, or if the ratio is high enough.

    The permutation test shuffles requests, not drafts, because the drafts of a request are correlated.
    """
    known = _by_length(totals)
    middle = len(known) // 2
    if len(known) < MIN_REQUESTS or known[0, 0] == known[-1, 0]:
        return None
    short, long = (float(part[:, 1].sum() / part[:, 2].sum()) for part in (known[:middle], known[middle:]))
    if long >= FAULTY_RATIO * short:
        return None
    rates = known[:, 1] / known[:, 2]
    orders = np.random.default_rng(0).permuted(np.tile(rates, (SHUFFLES, 1)), axis=1)
    falls = orders[:, :middle].mean(axis=1) - orders[:, middle:].mean(axis=1)
    fall = rates[:middle].mean() - rates[middle:].mean()
    p_value = float((np.count_nonzero(falls >= fall - 1e-12) + 1) / (SHUFFLES + 1))
    return LongPrompts(short, long, int(known[middle - 1, 0]), p_value)


def find_collapse(counts: ServerCounts) -> Collapse | None:
    """Return the part of a source that accepts far fewer drafts than the rest; None without significant evidence.

    A stretch is a run of consecutive periods at the K of `counts`. Stretches are compared by how often the first
    position is accepted. Exact bounds are corrected for the number of stretches and widened if periods vary more than
    independent drafts would. False alarms: none of 400 sources with a constant rate; up to 1.5 % of sources whose
    periods have rates with a standard deviation of .15 to .25 (with 2 to 4 periods; none of 400 with 10 or more).
    """
    longest = len(counts.positions)
    periods = [part for part in counts.periods if part.drafts and len(part.positions) == longest > 0]
    if len(periods) < 2:
        return None if longest else _collapse_of_averages(counts.periods)
    edges = np.linspace(0, len(periods), min(len(periods), MAX_STRETCHES) + 1).astype(int)
    parts = [add_counts(periods[start:end]) for start, end in pairwise(edges)]
    drafts, hits = np.array([(part.drafts, part.positions[0]) for part in parts]).T
    stretches = [(start, end) for start, end in combinations(range(len(parts) + 1), 2) if end - start < len(parts)]
    tried, accepted = (np.array([column[start:end].sum() for start, end in stretches]) for column in (drafts, hits))
    shortfall = tried * hits.sum() / drafts.sum() - accepted
    start, end = stretches[np.argmax(shortfall / np.sqrt(tried * (drafts.sum() - tried)))]
    low = np.isin(np.arange(len(parts)), range(start, end))
    sums = [(drafts[chosen].sum(), hits[chosen].sum()) for chosen in (low, ~low)]
    expected = np.where(low, *((hit + 0.5) / (count + 1) for count, hit in sums))
    squares = (hits - drafts * expected) ** 2 / (drafts * expected * (1 - expected))
    excess = max(float(squares.sum()) / max(len(parts) - 2, 1), 1.0)
    level = 1 - 2 * RULE_FALSE_ALARM / len(stretches)
    (_, most), (least, _) = (exact_interval(hit / excess, count / excess, level) for count, hit in sums)
    if most >= COLLAPSE_RATIO * least:
        return _scattered_collapse(periods)
    fallen = add_counts(parts[start:end])
    rest = add_counts(parts[:start] + parts[end:])
    if start and end < len(parts):
        rest = replace(rest, source=f"{rest.source} without {fallen.source}")
    return Collapse(fallen, rest)


def _collapse_of_averages(periods: Sequence[ServerCounts]) -> Collapse | None:
    """Return the collapse of one stretch of a log that contains only averages; None unless all are far below the rest.

    There are no counts to test, so both parts need two averages.
    """
    known = [part for part in periods if part.drafts is None and part.mean_length is not None]
    accepted = np.array([part.mean_length for part in known], dtype=float) - 1 + ROUNDING
    order = np.argsort(accepted, kind="stable")
    ratios = (accepted[order[:-1]] / accepted[order[1:]])[1:-1]
    if not len(ratios) or ratios.min() >= COLLAPSE_RATIO:
        return None
    low = sorted(order[: ratios.argmin() + 2])
    if low[-1] - low[0] >= len(low):
        return None
    others = [part for index, part in enumerate(known) if index not in low]
    return Collapse(add_counts([known[index] for index in low]), add_counts(others))


def _scattered_collapse(parts: Sequence[ServerCounts]) -> Collapse | None:
    """Return the collapse of several, possibly separate, parts of the source that accept almost nothing, or None."""
    level = 1 - 2 * RULE_FALSE_ALARM / len(parts)
    fallen: list[ServerCounts] = []
    others: list[ServerCounts] = []
    for part in parts:
        dead = part.positions[0] < MIN_FIRST_RATE * (part.drafts or 0) and _bounds(part, level)[1] < MIN_FIRST_RATE
        (fallen if dead else others).append(part)
    if len(fallen) < 2 or not others:
        return None
    more = f" and {len(fallen) - SHOWN_PARTS} more" if len(fallen) > SHOWN_PARTS else ""
    low = add_counts(fallen, ", ".join(part.source for part in fallen[:SHOWN_PARTS]) + more)
    rest = add_counts(others, f"the {len(others)} other parts" if len(others) > 1 else others[0].source)
    return Collapse(low, rest) if _bounds(low, level)[1] < COLLAPSE_RATIO * _bounds(rest, level)[0] else None


def _bounds(part: ServerCounts, level: float) -> tuple[float, float]:
    return exact_interval(part.positions[0], part.drafts or 0, level)


def unevenness(counts: ServerCounts) -> float:
    """Return the excess standard deviation of the first position's rate across periods; 0 if there are too few."""
    longest = len(counts.positions)
    drafted = [part for part in counts.periods if part.drafts]
    if not longest or len(drafted) < MIN_REQUESTS or any(len(part.positions) != longest for part in drafted):
        return 0.0
    drafts, hits = np.array([(part.drafts, part.positions[0]) for part in drafted]).T
    mean = hits.sum() / drafts.sum()
    excess = ((hits - drafts * mean) ** 2 - drafts * mean * (1 - mean)).sum() / max((drafts * (drafts - 1)).sum(), 1)
    return float(max(excess, 0.0) ** 0.5)


def exclude_collapse(counts: ServerCounts) -> ServerCounts:
    """Return the counts to plan from, excluding any part of the source in which acceptance collapses."""
    collapse = find_collapse(counts)
    if collapse is None:
        return counts
    low, rest = collapse
    note = f"Acceptance collapses in {low.source}: the plan uses only {rest.source}."
    return replace(rest, source=f"{counts.source}, {rest.source}", notes=(note, *counts.notes))


def _by_length(totals: Sequence[RequestTotals]) -> np.ndarray:
    """Return prompt tokens, accepted tokens and steps, int64 [m, 3], sorted by prompt length; skip unknown ones."""
    rows = sorted((t.prompt_tokens, t.accepted, t.steps) for t in totals if t.prompt_tokens is not None and t.steps)
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
