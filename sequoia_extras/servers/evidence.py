"""Facts for the doctor's rules, with exact bounds. K = number of positions."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, nan
from typing import NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import exact_interval

from .chain_acceptance import tokens_per_step
from .counts import ServerCounts
from .flags import method_from_name
from .request_spread import MIN_FIRST_RATE, RULE_FALSE_ALARM, LongPrompts, compare_long_prompts, unevenness

MAX_NEEDED_DRAFTS = 1_000_000
MIN_LATER_TRIALS = 500  # with fewer, a drop at a later position may go undetected (power: benchmarks/results)
MIN_DRAFTS = 20  # minimum for a comparison without an exact bound
BOUND_LEVEL = 1 - 2 * RULE_FALSE_ALARM


class Evidence(NamedTuple):
    """A number with its bounds, which are NaN if unknown.

    `of` is the number of trials, and `unit` is what they are called. Integer values are counts.
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
        if isinstance(self.value, int):
            form = "{:,}"
        elif self.share:
            form = "{:.0%}" if width > 0.05 else "{:.1%}"
        else:
            form = "{:,.1f}" if width > 0.5 else "{:,.2f}"
        bounds = f" ({form} to {form})".format(self.low, self.high) if self.low < self.high else ""
        trials = "" if self.of is None else f" of {self.of:,} {self.unit}".rstrip()
        return f"{self.what}: {form.format(self.value)}{bounds}{trials}"


class DraftYield(NamedTuple):
    """Tokens accepted per draft (or per drafted token), with the standard error."""

    mean: float
    error: float


@dataclass(frozen=True, eq=False)
class Facts:
    """Quantities that the rules derive from a source's counts; each is computed only once.

    Args:
        earlier: counts from another period, or published rates for the same draft; None if there are none.
    """

    counts: ServerCounts
    earlier: ServerCounts | None = None

    @cached_property
    def steps(self) -> int:
        """Number of drafts, or of steps if only those are known; 0 if neither is."""
        return self.counts.drafts or self.counts.all_steps or 0

    @cached_property
    def method(self) -> str | None:
        """Drafting method, one of `METHODS`; None if the drafter's name contains none."""
        return method_from_name(self.counts.drafter)

    @cached_property
    def tokens_per_step(self) -> float | None:
        """Current tokens per step; None if unknown."""
        return tokens_per_step(self.counts)

    @cached_property
    def first(self) -> Evidence | None:
        """Acceptance rate of the first position, or an upper bound on it if only totals or averages are known."""
        counts = self.counts
        if counts.positions and counts.drafts:
            return self._share("first position accepted", counts.positions[0], counts.drafts)
        what = "first position accepted, at most"
        if self.steps > 0 and counts.accepted_tokens is not None:
            return self._share(what, min(counts.accepted_tokens, self.steps), self.steps)
        if counts.mean_length is None:
            return None
        lengths = [part.mean_length for part in counts.periods if part.mean_length is not None] or [counts.mean_length]
        return Evidence(what, min(counts.mean_length - 1, 1.0), min(lengths) - 1, max(lengths) - 1)

    @cached_property
    def later(self) -> tuple[Evidence, ...]:
        """Pooled acceptance rate of the positions after the first, given the one before; empty if unknown."""
        trials = sum(self.reached[1:-1])
        if not trials:
            return ()
        return (self._share("later positions, given the one before", sum(self.reached[2:]), trials),)

    @cached_property
    def reached(self) -> list[int]:
        """Number of drafts with at least 0, 1, …, K positions accepted; empty if drafts ended early."""
        counts = self.counts
        return [] if counts.censored or not counts.drafts else [counts.drafts, *counts.positions]

    @cached_property
    def rates(self) -> list[Evidence]:
        """Acceptance rate of each position given the one before, [K]."""
        return [
            self._share(f"position {position}, given the one before", here, before)
            for position, (before, here) in enumerate(pairwise(self.reached), start=1)
        ]

    @cached_property
    def halves(self) -> tuple[Evidence, Evidence] | None:
        """Conditional acceptance rates of the first and the last half of the positions; None if K < 3."""
        reached = self.reached
        longest = len(reached) - 1
        middle = len(reached) // 2
        if longest < 3:
            return None
        first, last = (
            self._share(f"positions {start + 1} to {end}", sum(reached[start + 1 : end + 1]), sum(reached[start:end]))
            for start, end in ((0, middle), (middle, longest))
        )
        return first, last

    @cached_property
    def drafted(self) -> Evidence:
        """Share of drafted tokens accepted; a draft's tokens are correlated, so the bounds treat drafts as trials."""
        counts = self.counts
        what = "drafted tokens accepted"
        accepted = counts.accepted_tokens or 0
        drafted = counts.draft_tokens or 0
        trials = min(self.steps, drafted)
        if not trials or counts.published:
            return self._share(what, accepted, drafted)
        share = accepted / drafted
        low, high = exact_interval(share * trials, trials, BOUND_LEVEL)
        return Evidence(what, share, low, high, trials, unit="drafts" if counts.drafts else "steps")

    @cached_property
    def whole(self) -> Evidence:
        """Share of drafts accepted in full; share of drafted tokens accepted if positions are unknown."""
        counts = self.counts
        if not counts.positions:
            return self.drafted
        return self._share("drafts accepted in full", counts.positions[-1], counts.drafts or 0)

    @cached_property
    def most_accepted(self) -> float:
        """Exact upper bound on the tokens accepted per draft; it is wrong in at most RULE_FALSE_ALARM of readings."""
        counts = self.counts
        level = 1 - 2 * RULE_FALSE_ALARM / len(counts.positions)
        return sum(exact_interval(hits, counts.drafts or 0, level)[1] for hits in counts.positions)

    @cached_property
    def more_drafts(self) -> int | None:
        """Drafts needed to separate the first position's rate from MIN_FIRST_RATE; None if above MAX_NEEDED_DRAFTS."""
        if self.first is None or self.first.of is None:
            return None
        trials = self.first.of
        while trials < MAX_NEEDED_DRAFTS:
            trials = ceil(trials * 1.25)
            low, high = exact_interval(round(self.first.value * trials), trials, BOUND_LEVEL)
            if low > MIN_FIRST_RATE or high < MIN_FIRST_RATE:
                return round_up(trials)
        return None

    @cached_property
    def more_later_drafts(self) -> int | None:
        """Number of drafts needed to judge the later positions; None if there are enough or K = 1."""
        drafts = self.counts.drafts
        trials = self.later[0].of if self.later else None
        if not drafts or not trials or trials >= MIN_LATER_TRIALS:
            return None
        return round_up(drafts * MIN_LATER_TRIALS / trials)

    @cached_property
    def unevenness(self) -> float:
        """Standard deviation of the first position's rate across parts of the source."""
        return unevenness(self.counts)

    @cached_property
    def long_prompts(self) -> LongPrompts | None:
        """Comparison of long and short prompts; None if unknown, or if acceptance with long prompts is high enough."""
        return compare_long_prompts(self.counts.totals)

    @cached_property
    def yields(self) -> tuple[DraftYield, DraftYield] | None:
        """Draft yield in the earlier period and now, over the same number of positions; None if either is unknown."""
        if self.earlier is None:
            return None
        most = len(self.counts.positions) if self.earlier.positions else 0
        before = draft_yield(Facts(self.earlier), most)
        now = draft_yield(self, most)
        return None if before is None or now is None else (before, now)

    def _share(self, what: str, hits: int, trials: int) -> Evidence:
        """Return a share with bounds, each of which is wrong in at most RULE_FALSE_ALARM of readings."""
        if not trials:
            return Evidence(what, 0.0, 0.0, 1.0, 0)
        share = hits / trials
        if self.counts.published:  # the number of drafts is unknown
            return Evidence(what, share, share, share)
        return Evidence(what, share, *exact_interval(hits, trials, BOUND_LEVEL), trials)


def draft_yield(facts: Facts, most: int) -> DraftYield | None:
    """Return the tokens accepted per draft up to `most` positions, or per drafted token if positions are unknown.

    Longer drafts are accepted slightly less often at their first positions, but never less in total. None if there are
    too few drafts.
    """
    counts = facts.counts
    first = facts.first
    if not counts.published and facts.steps < MIN_DRAFTS:
        return None
    if most and counts.drafts:
        survival = np.array(counts.positions[:most]) / counts.drafts
        mean = float(survival.sum())
        variance = float(survival @ np.arange(1, 2 * len(survival), 2)) - mean**2
        return DraftYield(mean, 0.0 if counts.published else (max(variance, 0.0) / counts.drafts) ** 0.5)
    if first is None or not first.of or not counts.draft_tokens:
        return None
    share = (counts.accepted_tokens or 0) / counts.draft_tokens
    # A draft's tokens are correlated, so drafts are the trials.
    return DraftYield(share, (share * (1 - share) / first.of) ** 0.5)


def round_up(count: float) -> int:
    """Round a count up to one significant digit."""
    digit = 10 ** (len(str(ceil(count))) - 1)
    return ceil(count / digit) * digit
