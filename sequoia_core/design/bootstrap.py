"""Estimates with 95 % intervals, by resampling whole prompts (percentile bootstrap). m = prompts, r = resamples."""

from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
COMPUTED_RESAMPLES = 200  # where each needs a computation of its own
TABLE_RESAMPLES = 50  # where that takes long
BATCH = 100
LEVEL = 0.95


class Estimate(NamedTuple):
    """A value with its 95 % interval; the bounds are None where a single prompt leaves nothing to resample."""

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def to_json(self) -> dict[str, float | None]:
        return self._asdict()


def prompt_draws(
    prompts: int, count: int, generator: np.random.Generator, *, drawn: int | None = None
) -> Iterator[np.ndarray]:
    """Yield how often each prompt is in each of `count` resamples of `drawn` prompts, int64 [up to 100, m] each."""
    for start in range(0, count, BATCH):
        yield generator.multinomial(drawn or prompts, np.full(prompts, 1 / prompts), size=min(BATCH, count - start))


def resampled(prompts: int, seed: int = 0, *, drawn: int | None = None) -> np.ndarray:
    """Return how often each prompt is in each resample of `drawn` prompts (None: m), int64 [r, m]."""
    return np.concatenate(list(prompt_draws(prompts, RESAMPLES, np.random.default_rng(seed), drawn=drawn)))


def resampled_means(sums: np.ndarray, trials: np.ndarray, count: int) -> np.ndarray:
    """Return means per trial of `count` resamples, of sums [m, ..., B] and trials [m, ...] by prompt; [count, ..., B].

    A resample of only empty prompts has no estimate; it counts as zero trials accepted.
    """
    batches = [
        np.tensordot(picks, sums, 1) / np.maximum(np.tensordot(picks, trials, 1), 1)[..., None]
        for picks in prompt_draws(len(sums), count, np.random.default_rng(0))
    ]
    return np.concatenate(batches)


def interval(samples: np.ndarray, level: float = LEVEL, *, whole: bool = False) -> np.ndarray:
    """Return the bounds of resampled values, float64 [r, ...] -> [2, ...]; `whole` takes values that occurred."""
    tails = [(1 - level) / 2, (1 + level) / 2]
    return np.quantile(samples, tails, axis=0, method="closest_observation" if whole else "linear")


def estimate(value: float, samples: np.ndarray) -> Estimate:
    """Return a value with the bounds of its resamples, float64 [r]."""
    return Estimate(value, *interval(samples).tolist())


def ratio_estimate(numerators: np.ndarray, denominators: np.ndarray, *, few: bool = False) -> Estimate:
    """Estimate sum(numerators) / sum(denominators), number [m] each; `few` widens the interval as `stretched` does."""
    value, prompts = float(numerators.sum() / denominators.sum()), len(numerators)
    if prompts < 2:
        return Estimate(value, None, None)
    picks = resampled(prompts)
    samples = (picks @ numerators) / (picks @ denominators)
    return estimate(value, stretched(samples, value, prompts) if few else samples)


def stretched(samples: np.ndarray, value: float, prompts: int) -> np.ndarray:
    """Widen resampled ratios around their value as Student's t asks of few prompts, float64 [r] -> [r].

    A percentile bootstrap over m prompts is too narrow by the root of (m - 1) / m: its 95 % intervals held the truth in
    79 % of the cases for 4 prompts, and in 92 % for 12.
    """
    from scipy.special import stdtrit

    level = (1 + LEVEL) / 2
    factor = stdtrit(prompts - 1, level) / NormalDist().inv_cdf(level) * (prompts / (prompts - 1)) ** 0.5
    return value * (samples / value) ** factor


def never_seen(trials: int | np.ndarray) -> float | np.ndarray:
    """Return the largest chance of what occurred in none of so many trials (about 3 ÷ trials); 1 without trials.

    Resampling cannot tell: in each resample it occurs nowhere either.
    """
    return 1.0 - (1.0 - LEVEL) ** (1.0 / np.maximum(trials, 1e-9))


def with_unseen(
    bounds: tuple[np.ndarray, np.ndarray], probs: np.ndarray, trials: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds that allow for what was seen never, or each time: a share of 0 or 1 is not certain."""
    low, high = bounds
    unseen = never_seen(trials)
    return np.where(probs == 1, np.minimum(low, 1 - unseen), low), np.where(probs == 0, np.maximum(high, unseen), high)


def unseen_share(tokens: np.ndarray, steps: np.ndarray, again: np.ndarray | None, trials: int | None) -> float:
    """Return which share of steps may go unlike those seen, where these all went alike; 0 where some differed.

    Args:
        tokens, steps: [m], of each text, whose last step may be cut; or of one step.
        again: tokens per step of resampled vectors, float64 [r], where there are no texts.
        trials: positions measured; None when unknown.
    """
    most = np.ceil(tokens / steps).max()
    alike = np.ptp(again) == 0 if again is not None else (steps == np.ceil(tokens / most)).all()
    if not alike or trials is None:
        return 0.0
    return float(never_seen(trials if again is not None else int(steps.sum())))


def widened(found: Estimate, per_step: float, depth: int, unseen: float) -> Estimate:
    """Return an estimate in proportion to tokens per step, its interval as wide as an unseen share of steps makes it.

    Such a step commits one token at least, and at most one more than the tree is deep.
    """
    if found.low is None or found.high is None:
        return found
    low, high = (1.0 + unseen * (tokens / per_step - 1.0) for tokens in (1.0, depth + 1.0))
    return Estimate(found.value, min(found.low, found.value * low), max(found.high, found.value * high))


def exact_interval(hits: float, trials: float, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson bounds of a share of independent trials: never too narrow, however few there are."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    return low, float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0


def wilson_interval(rate: np.ndarray, trials: int | np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the Wilson bounds of shares of independent trials, float64 [B]; `trials` is one number or [B]."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    shrink = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / shrink
    half = z / shrink * np.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
