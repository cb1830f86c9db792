"""Estimates with 95% intervals from a percentile bootstrap over whole prompts. m = prompts, r = resamples."""

from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
COMPUTED_RESAMPLES = 200  # used if each resample requires a new computation
TABLE_RESAMPLES = 50  # used if that computation is slow
BATCH = 100
CONFIDENCE_LEVEL = 0.95


class Estimate(NamedTuple):
    """A value with its 95% interval; the bounds are None if there are too few prompts to resample."""

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def to_json(self) -> dict[str, float | None]:
        return self._asdict()


def draw_prompts(
    prompts: int, count: int, generator: np.random.Generator, *, drawn: int | None = None
) -> Iterator[np.ndarray]:
    """Yield how often each prompt occurs in each resample, in batches of int64 [up to 100, m].

    There are `count` resamples of `drawn` prompts each (m if None).
    """
    for start in range(0, count, BATCH):
        yield generator.multinomial(drawn or prompts, np.full(prompts, 1 / prompts), size=min(BATCH, count - start))


def resample_prompts(prompts: int, seed: int = 0, *, drawn: int | None = None) -> np.ndarray:
    """Return how often each prompt occurs in each resample of `drawn` prompts (m if None), int64 [r, m]."""
    return np.concatenate(list(draw_prompts(prompts, RESAMPLES, np.random.default_rng(seed), drawn=drawn)))


def resample_means(sums: np.ndarray, trials: np.ndarray, count: int) -> np.ndarray:
    """Return the mean per trial of each of `count` resamples, float64 [count, ..., B]; 0 without trials.

    Args:
        sums: [m, ..., B], sum per prompt.
        trials: [m, ...], number of trials per prompt.
    """
    batches = [
        np.tensordot(picks, sums, 1) / np.maximum(np.tensordot(picks, trials, 1), 1)[..., None]
        for picks in draw_prompts(len(sums), count, np.random.default_rng(0))
    ]
    return np.concatenate(batches)


def interval(samples: np.ndarray, level: float = CONFIDENCE_LEVEL, *, whole: bool = False) -> np.ndarray:
    """Return the bounds, float64 [2, ...], of samples, float64 [r, ...]; `whole` disables interpolation."""
    tails = [(1 - level) / 2, (1 + level) / 2]
    return np.quantile(samples, tails, axis=0, method="closest_observation" if whole else "linear")


def estimate(value: float, samples: np.ndarray) -> Estimate:
    """Return an estimate with bounds computed from the resampled values, float64 [r]; without bounds if r < 2."""
    if len(samples) < 2:
        return Estimate(value, None, None)
    return Estimate(value, *interval(samples).tolist())


def ratio_estimate(numerators: np.ndarray, denominators: np.ndarray, *, few: bool = False) -> Estimate:
    """Estimate sum(numerators) / sum(denominators), both [m]; `few` applies `widen_for_few_prompts`."""
    value = float(numerators.sum() / denominators.sum())
    prompts = len(numerators)
    if prompts < 2:
        return Estimate(value, None, None)
    picks = resample_prompts(prompts)
    samples = (picks @ numerators) / (picks @ denominators)
    return estimate(value, widen_for_few_prompts(samples, value, prompts) if few else samples)


def widen_for_few_prompts(samples: np.ndarray, value: float, prompts: int) -> np.ndarray:
    """Widen resampled ratios, float64 [r], around `value`, using Student's t for this number of prompts.

    A percentile bootstrap over m prompts is too narrow by a factor of sqrt((m - 1) / m): in tests, its 95% intervals
    covered the true value in 79% of cases for 4 prompts, and in 92% for 12.
    """
    from scipy.special import stdtrit

    level = (1 + CONFIDENCE_LEVEL) / 2
    factor = stdtrit(prompts - 1, level) / NormalDist().inv_cdf(level) * (prompts / (prompts - 1)) ** 0.5
    return value * (samples / value) ** factor


def unseen_bound(trials: int | np.ndarray) -> float | np.ndarray:
    """Return the upper bound on the probability of an event that never occurred: about 3 / trials, or 1 without trials.

    Resampling cannot give this bound, because the event is also absent from every resample.
    """
    return 1.0 - (1.0 - CONFIDENCE_LEVEL) ** (1.0 / np.maximum(trials, 1e-9))


def widen_for_unseen(
    bounds: tuple[np.ndarray, np.ndarray], probs: np.ndarray, trials: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Widen the bounds of probabilities measured as exactly 0 or 1, because neither is certain."""
    low, high = bounds
    unseen = unseen_bound(trials)
    return np.where(probs == 1, np.minimum(low, 1 - unseen), low), np.where(probs == 0, np.maximum(high, unseen), high)


def unseen_share(tokens: np.ndarray, steps: np.ndarray, resampled: np.ndarray | None, trials: int | None) -> float:
    """Return an upper bound on the share of steps that differ if all measured steps were equal; 0 if some differed.

    Args:
        tokens, steps: [m], totals per text (whose last step may be truncated), or the values for a single step.
        resampled: tokens per step of resampled vectors, float64 [r]; None for totals per text.
        trials: number of positions measured; None if unknown.
    """
    most = np.ceil(tokens / steps).max()
    alike = np.ptp(resampled) == 0 if resampled is not None else (steps == np.ceil(tokens / most)).all()
    if not alike or trials is None:
        return 0.0
    return float(unseen_bound(trials if resampled is not None else int(steps.sum())))


def widen_by_unseen_share(estimate: Estimate, per_step: float, depth: int, unseen: float) -> Estimate:
    """Widen the interval of a quantity proportional to `per_step`, the tokens per step, to allow for unseen steps.

    An unseen step commits at least one token and at most `depth` + 1.
    """
    if estimate.low is None or estimate.high is None:
        return estimate
    low, high = (1.0 + unseen * (tokens / per_step - 1.0) for tokens in (1.0, depth + 1.0))
    value = estimate.value
    return Estimate(value, min(estimate.low, value * low), max(estimate.high, value * high))


def exact_interval(hits: float, trials: float, level: float) -> tuple[float, float]:
    """Return Clopper-Pearson bounds on a success rate in independent trials; conservative for any number of trials."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    return low, float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0


def wilson_interval(rate: np.ndarray, trials: int | np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson bounds on success rates in independent trials, float64 [B] each; `trials` is a number or [B]."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    shrink = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / shrink
    half = z / shrink * np.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
