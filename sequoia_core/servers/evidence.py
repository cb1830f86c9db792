"""Numbers that the doctor's rules rest on, with exact bounds. K = positions."""

from math import ceil, nan
from typing import NamedTuple

import numpy as np

from ..design.bootstrap import exact_interval
from .counts import ServerCounts
from .request_spread import FALSE_ALARM, MIN_FIRST_RATE

MAX_NEEDED_DRAFTS = 1_000_000
MIN_DRAFTS = 20  # below which drafts are not compared where no exact bound is known


class Evidence(NamedTuple):
    """A number found, with its bounds (NaN where it has none).

    `of` is how many trials it rests on, `unit` what they are. Whole numbers are counts.
    """

    what: str
    value: float
    low: float = nan
    high: float = nan
    of: int | None = None
    share: bool = True
    unit: str = ""

    def __str__(self) -> str:
        width = self.high - self.low
        form = ("{:.0%}" if width > 0.05 else "{:.1%}") if self.share else "{:,.1f}" if width > 0.5 else "{:,.2f}"
        if isinstance(self.value, int):
            form = "{:,}"
        bounds = f" ({form} to {form})".format(self.low, self.high) if self.low < self.high else ""
        of = "" if self.of is None else f" of {self.of:,} {self.unit}".rstrip()
        return f"{self.what}: {form.format(self.value)}{bounds}{of}"


def first_position(counts: ServerCounts) -> Evidence | None:
    """Return how often the first position is accepted; of totals and averages, the most that it can be."""
    if counts.positions and counts.drafts:
        return share_of("first position accepted", counts.positions[0], counts.drafts, counts)
    what, accepted, drafts = "first position accepted, at most", counts.accepted_tokens, drafts_or_steps(counts)
    if drafts > 0 and accepted is not None:
        return share_of(what, min(accepted, drafts), drafts, counts)
    if counts.mean_length is None:
        return None
    lengths = [part.mean_length for part in counts.periods if part.mean_length is not None] or [counts.mean_length]
    return Evidence(what, min(counts.mean_length - 1, 1.0), min(lengths) - 1, max(lengths) - 1)


def drafts_or_steps(counts: ServerCounts) -> int:
    """Return the drafts, or the steps where only those are known; 0 where neither is."""
    return counts.drafts or counts.all_steps or 0


def later_positions(counts: ServerCounts) -> tuple[Evidence, ...]:
    reached = drafts_reaching(counts)
    trials = sum(reached[1:-1])
    return (share_of("later ones, given the one before", sum(reached[2:]), trials, counts),) if trials else ()


def drafts_reaching(counts: ServerCounts) -> list[int]:
    """Return in how many drafts 0, 1, …, K positions were accepted; nothing where drafts ended early by themselves."""
    return [] if counts.censored or not counts.drafts else [counts.drafts, *counts.positions]


def share_of(what: str, hits: int, trials: int, counts: ServerCounts) -> Evidence:
    """Return a share with bounds that miss the truth to either side in FALSE_ALARM of all readings."""
    if not trials:
        return Evidence(what, 0.0, 0.0, 1.0, 0)
    if counts.shares:  # published: of how many drafts is not known
        return Evidence(what, hits / trials, hits / trials, hits / trials)
    return Evidence(what, hits / trials, *exact_interval(hits, trials, 1 - 2 * FALSE_ALARM), trials)


def drafted_tokens(counts: ServerCounts) -> Evidence:
    """Return the share of drafted tokens accepted; those of a draft are correlated, so its bounds count drafts."""
    what, accepted, drafted = "drafted tokens accepted", counts.accepted_tokens or 0, counts.draft_tokens or 0
    trials = min(drafts_or_steps(counts), drafted)
    if not trials or counts.shares:
        return share_of(what, accepted, drafted, counts)
    share = accepted / drafted
    bounds = exact_interval(share * trials, trials, 1 - 2 * FALSE_ALARM)
    return Evidence(what, share, *bounds, trials, unit="drafts" if counts.drafts else "steps")


def most_accepted(counts: ServerCounts) -> float:
    """Return an exact upper bound of the tokens accepted per draft, wrong in FALSE_ALARM of all readings."""
    each = FALSE_ALARM / len(counts.positions)
    return sum(exact_interval(hits, counts.drafts or 0, 1 - 2 * each)[1] for hits in counts.positions)


def needed_drafts(rate: float, trials: int) -> int | None:
    """Return how many drafts tell such a rate from MIN_FIRST_RATE; None for too many."""
    while trials < MAX_NEEDED_DRAFTS:
        trials = ceil(trials * 1.25)
        low, high = exact_interval(round(rate * trials), trials, 1 - 2 * FALSE_ALARM)
        if low > MIN_FIRST_RATE or high < MIN_FIRST_RATE:
            return rounded_up(trials)
    return None


def rounded_up(count: float) -> int:
    """Return a count with its first digit alone."""
    digit = 10 ** (len(str(ceil(count))) - 1)
    return ceil(count / digit) * digit


def yield_of(counts: ServerCounts, most: int) -> tuple[float, float] | None:
    """Return the tokens accepted per draft up to `most` positions, with the standard error; else per drafted token.

    The first positions of longer drafts are accepted a little less; all of them on the same texts never less.
    """
    if not counts.shares and drafts_or_steps(counts) < MIN_DRAFTS:
        return None
    if most and counts.drafts:
        survival = np.array(counts.positions[:most]) / counts.drafts
        mean = float(survival.sum())
        variance = float(survival @ np.arange(1, 2 * len(survival), 2)) - mean**2
        return mean, 0.0 if counts.shares else (max(variance, 0.0) / counts.drafts) ** 0.5
    first = first_position(counts)
    if first is None or not first.of or not counts.draft_tokens:
        return None
    share = (counts.accepted_tokens or 0) / counts.draft_tokens
    return share, (share * (1 - share) / first.of) ** 0.5  # tokens of a draft are correlated: count drafts
