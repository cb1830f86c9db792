"""How acceptance differs between requests, by the length of their prompts, and over a source. Shapes: m = requests."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from ..design.bootstrap import exact_interval
from .counts import RequestTotals, ServerCounts, summed

FALSE_ALARM = 0.01  # of one rule, where the truth lies at its threshold; healthy drafts lie further off

MIN_REQUESTS = 8  # of fewer, halves differ by chance in more than 1 of 70 orders
LENGTH_PARTS = 3  # of prompts by length
SHUFFLES = 2000
# of what short prompts have, below which it is said (ik_llama.cpp#2296: .22 at 12K tokens, .8 at 1K; vllm#47602: .6)
FAULTY_RATIO = 2 / 3
MIN_FIRST_RATE = 0.2  # of drafts with their first token accepted: healthy heads have .5 to .85
COLLAPSE_RATIO = 0.5  # of the acceptance in the rest of a source, below which a stretch counts as a separate phase
SHOWN_PARTS = 3  # of those that are no one stretch
MAX_STRETCHES = 64  # compared with each other; where there are more, neighbours are joined


class Spread(NamedTuple):
    """Tokens per step over requests: their mean, the standard deviation as a share of it, least and most."""

    mean: float
    deviation: float
    least: float
    most: float
    requests: int

    def __str__(self) -> str:
        return (
            f"Requests differ: {self.mean:.2f} tokens per step on average, ±{self.deviation:.0%} between "
            f"{self.requests} of them ({self.least:.2f} to {self.most:.2f})."
        )


class LengthPart(NamedTuple):
    """Requests whose prompts have from `shortest` to `longest` tokens."""

    shortest: int
    longest: int
    tokens_per_step: float
    requests: int


class Collapse(NamedTuple):
    """Parts of a source that accept far fewer drafts than the rest; `source` says which each is."""

    low: ServerCounts
    rest: ServerCounts


class LongPrompts(NamedTuple):
    """Tokens accepted per step with prompts up to `middle` tokens and longer, and the chance of no real difference."""

    short: float
    long: float
    middle: int
    chance: float


def spread(totals: Sequence[RequestTotals]) -> Spread | None:
    """Return how tokens per step differ between requests; None for fewer than two with steps."""
    per_step = np.array([1 + each.accepted / each.steps for each in totals if each.steps])
    if len(per_step) < 2:
        return None
    mean = float(per_step.mean())
    return Spread(mean, float(per_step.std(ddof=1)) / mean, float(per_step.min()), float(per_step.max()), len(per_step))


def by_prompt_length(totals: Sequence[RequestTotals]) -> list[LengthPart]:
    """Return tokens per step in thirds of the prompts by length; nothing where lengths are unknown or too few."""
    known = _known(totals)
    if len(known) < MIN_REQUESTS:
        return []
    parts = np.array_split(known, LENGTH_PARTS)
    if any(before[-1, 0] >= after[0, 0] for before, after in zip(parts, parts[1:], strict=False)):
        return []  # most prompts have one length: these would not be parts by length
    return [LengthPart(int(p[0, 0]), int(p[-1, 0]), 1 + float(p[:, 1].sum() / p[:, 2].sum()), len(p)) for p in parts]


def long_prompts(totals: Sequence[RequestTotals]) -> LongPrompts | None:
    """Compare long prompts with short ones; None where lengths are unknown or too few, or long ones accept enough.

    Requests are shuffled, not drafts: those of one request resemble each other.
    """
    known = _known(totals)
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
    chance = float((np.count_nonzero(falls >= fall - 1e-12) + 1) / (SHUFFLES + 1))
    return LongPrompts(short, long, int(known[middle - 1, 0]), chance)


def collapse(counts: ServerCounts) -> Collapse | None:
    """Return the part of a source that accepts far fewer drafts than the rest; None where none does with certainty.

    A stretch is a run of periods at the K of `counts`; what is compared is how often the first position is accepted.
    Exact bounds are corrected for the number of stretches, and widened by how much more periods differ than
    independent drafts would. False alarms: none of 400 sources with one rate throughout; of those whose periods have
    rates with a standard deviation of .15 to .25, up to 1.5 % (with 2 to 4 periods; none of 400 with 10 or more).
    """
    longest = len(counts.positions)
    parts = [part for part in counts.periods if part.drafts and len(part.positions) == longest > 0]
    if len(parts) < 2:
        return None
    every = parts
    edges = np.linspace(0, len(parts), min(len(parts), MAX_STRETCHES) + 1).astype(int)
    parts = [summed(parts[start:end]) for start, end in pairwise(edges)]
    drafts, hits = np.array([(part.drafts, part.positions[0]) for part in parts]).T
    stretches = [(start, end) for start, end in combinations(range(len(parts) + 1), 2) if end - start < len(parts)]
    tried, held = (np.array([of[start:end].sum() for start, end in stretches]) for of in (drafts, hits))
    shortfall = tried * hits.sum() / drafts.sum() - held
    start, end = stretches[np.argmax(shortfall / np.sqrt(tried * (drafts.sum() - tried)))]
    low = np.isin(np.arange(len(parts)), range(start, end))
    sums = [(drafts[chosen].sum(), hits[chosen].sum()) for chosen in (low, ~low)]
    expected = np.where(low, *((hit + 0.5) / (of + 1) for of, hit in sums))
    squares = (hits - drafts * expected) ** 2 / (drafts * expected * (1 - expected))
    excess = max(float(squares.sum()) / max(len(parts) - 2, 1), 1.0)
    level = 1 - 2 * FALSE_ALARM / len(stretches)
    (_, most), (least, _) = (exact_interval(hit / excess, of / excess, level) for of, hit in sums)
    if most >= COLLAPSE_RATIO * least:
        return _scattered(every)
    fallen, rest = summed(parts[start:end]), summed(parts[:start] + parts[end:])
    if start and end < len(parts):
        rest = replace(rest, source=f"{rest.source} without {fallen.source}")
    return Collapse(fallen, rest)


def _scattered(parts: Sequence[ServerCounts]) -> Collapse | None:
    """Return the parts that each accept surely next to nothing, where they are no one stretch."""
    level = 1 - 2 * FALSE_ALARM / len(parts)
    counted = [(part.positions[0], part.drafts or 0) for part in parts]
    dead = [hits < MIN_FIRST_RATE * of and exact_interval(hits, of, level)[1] < MIN_FIRST_RATE for hits, of in counted]
    fallen = [part for part, low in zip(parts, dead, strict=True) if low]
    others = [part for part, low in zip(parts, dead, strict=True) if not low]
    if len(fallen) < 2 or not others:
        return None
    more = f" and {len(fallen) - SHOWN_PARTS} more" if len(fallen) > SHOWN_PARTS else ""
    low = summed(fallen, ", ".join(part.source for part in fallen[:SHOWN_PARTS]) + more)
    rest = summed(others, f"the {len(others)} other parts" if len(others) > 1 else others[0].source)
    (_, most), (least, _) = (exact_interval(part.positions[0], part.drafts or 0, level) for part in (low, rest))
    return Collapse(low, rest) if most < COLLAPSE_RATIO * least else None


def unevenness(counts: ServerCounts) -> float:
    """Return the standard deviation of the first position's rate over the periods, chance taken off; 0 for few."""
    longest = len(counts.positions)
    known = [(part.drafts, part.positions[0]) for part in counts.periods if part.drafts and part.positions]
    if len(known) < MIN_REQUESTS or any(len(part.positions) != longest for part in counts.periods if part.drafts):
        return 0.0
    drafts, hits = np.array(known).T
    mean = hits.sum() / drafts.sum()
    excess = ((hits - drafts * mean) ** 2 - drafts * mean * (1 - mean)).sum() / max((drafts * (drafts - 1)).sum(), 1)
    return float(max(excess, 0.0) ** 0.5)


def steady(counts: ServerCounts) -> ServerCounts:
    """Return the counts to plan from: where acceptance collapses within a source, those of the rest of it."""
    found = collapse(counts)
    if found is None:
        return counts
    note = f"Acceptance collapses in {found.low.source}: planned from {found.rest.source} alone."
    return replace(found.rest, source=f"{counts.source}, {found.rest.source}", notes=(note, *counts.notes))


def _known(totals: Sequence[RequestTotals]) -> np.ndarray:
    """Return prompt tokens, tokens accepted and steps of requests that tell them, by length, int64 [m, 3]."""
    rows = sorted((t.prompt_tokens, t.accepted, t.steps) for t in totals if t.prompt_tokens is not None and t.steps)
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
