"""How acceptance differs between requests, and with the length of their prompts. Shapes: m = requests."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .counts import RequestTotals

MIN_REQUESTS = 8  # of fewer, halves differ by chance in more than 1 of 70 orders
LENGTH_PARTS = 3  # of prompts by length
SHUFFLES = 2000
# of what short prompts have, below which it is said (ik_llama.cpp#2296: .22 at 12K tokens, .8 at 1K; vllm#47602: .6)
FAULTY_RATIO = 2 / 3


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
    parts = [part for part in np.array_split(known, LENGTH_PARTS) if len(part)]
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


def _known(totals: Sequence[RequestTotals]) -> np.ndarray:
    """Return prompt tokens, tokens accepted and steps of requests that tell them, by length, int64 [m, 3]."""
    rows = sorted((t.prompt_tokens, t.accepted, t.steps) for t in totals if t.prompt_tokens is not None and t.steps)
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
