"""Predict the speed of decoding with a tree, with intervals. m = prompts, r = resamples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..acceptance.bootstrap import (
    COMPUTED_RESAMPLES,
    CONFIDENCE_LEVEL,
    RESAMPLES,
    Estimate,
    estimate,
    resample_prompts,
    unseen_share,
    widen_by_unseen_share,
)
from ..acceptance.vector import AcceptanceVector
from ..trees.optimal import expected_tokens
from ..trees.plain import chain_tree, independent_chains
from ..trees.replay import replay
from ..trees.tree import TokenTree
from .plan import BestShape, is_greedy, paper_step_cost, plan_tree
from .profile import HardwareProfile
from .step_time import StepTime, autoregressive_sec, step_time

# Maps a profile to the mean seconds per step of verifying, drafting and overhead for each prompt, float64 [3, m].
StepParts = Callable[[HardwareProfile], np.ndarray]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of decoding with a tree.

    Attributes:
        speedup: speedup over autoregressive decoding with the same target, as a ratio of totals, excluding prefill.
        tokens_per_step: committed tokens per target pass.
        step: mean seconds per step.
        autoregressive_sec: seconds per token without speculation.
        paper_speedup: F(T) / (t(n) + d c), the paper's formula (§3.3); None for trees that vary between steps.
        replayed: whether tokens per step come from the measured texts rather than from the vector alone.
    """

    speedup: Estimate
    tokens_per_step: Estimate
    step: StepTime
    autoregressive_sec: float
    paper_speedup: float | None
    replayed: bool

    @property
    def sec_per_token(self) -> float:
        """Seconds per step divided by tokens per step."""
        return self.step.total_sec / self.tokens_per_step.value

    def holds(self, measured: float) -> bool | None:
        """Return whether a measured speedup lies within the interval; None if there is no interval."""
        bounds = self.speedup.interval
        return None if bounds is None else bounds[0] <= measured <= bounds[1]


def predict(
    tree: TokenTree,
    acceptance: AcceptanceVector,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    prompts: int | None = None,
) -> Prediction:
    """Predict the speed of decoding with this tree.

    Tokens per step come from the vector's texts if it stores their accepted ranks, otherwise from its probabilities;
    times come from the profile. The intervals come from resampling prompts and timing rounds.

    Args:
        context: mean number of tokens in the cache; None for the profile's number.
        prompts: number of prompts that will be decoded to test the prediction; their spread widens the interval. None
            to predict the average over all such texts.
    """
    greedy = is_greedy(acceptance)
    tokens, steps, resampled = _tokens_and_steps(tree, acceptance)

    def parts(times: HardwareProfile) -> np.ndarray:
        step = step_time(tree, times, context=context, greedy=greedy)
        return np.array([[step.verify_sec], [step.draft_sec], [step.overhead_sec]])

    prediction = predict_prompts(
        tokens,
        steps,
        parts,
        profile,
        context=context,
        greedy=greedy,
        prompts=prompts,
        resampled=resampled,
        one_prompt=acceptance.has_one_prompt,
    )
    paper = expected_tokens(tree, acceptance) / float(paper_step_cost(tree.size, tree.depth, profile))
    per_step = prediction.tokens_per_step
    unseen = unseen_share(tokens, steps, resampled, acceptance.trials)
    return replace(
        prediction,
        speedup=widen_by_unseen_share(prediction.speedup, per_step.value, tree.depth, unseen),
        tokens_per_step=widen_by_unseen_share(per_step, per_step.value, tree.depth, unseen),
        paper_speedup=paper,
        replayed=acceptance.prompt_ranks is not None,
    )


def predict_prompts(
    tokens: np.ndarray,
    steps: np.ndarray,
    parts: StepParts,
    profile: HardwareProfile,
    *,
    greedy: bool,
    context: float | None = None,
    prompts: int | None = None,
    resampled: np.ndarray | None = None,
    one_prompt: bool | None = None,
) -> Prediction:
    """Combine the expected tokens, steps and seconds of each prompt into a prediction.

    Args:
        tokens, steps: [m], totals for each prompt.
        parts: computes step times from a profile; a single column applies to all prompts.
        resampled: tokens per step for resampled vectors, float64 [r]; None if prompts are resampled instead.
        one_prompt: whether the sample is a single prompt, so that no interval exists; None to infer it from `tokens`.
    """

    def mean(sec: np.ndarray) -> np.ndarray:
        return sec[:, 0] if sec.shape[1] == 1 else sec @ steps / steps.sum()

    def step_sec(times: HardwareProfile) -> float:
        return float(mean(parts(times)).sum())

    sec = parts(profile)
    alone = autoregressive_sec(profile, context=context, greedy=greedy)
    by_step = by_time = resampled
    if len(tokens) > 1:
        by_step = resample_rates(tokens, steps, prompts)
        by_time = resample_rates(tokens, steps * sec.sum(axis=0), prompts)
    if one_prompt is None:
        one_prompt = len(tokens) < 2
    ratios = None
    if not one_prompt:  # with one prompt, an interval from times alone would ignore the spread between texts
        ratios = resample_time_ratios(profile, step_sec, context=context, greedy=greedy, prompts=prompts)
    per_step = float(tokens.sum() / steps.sum())
    return Prediction(
        speedup=combine_spreads(per_step * (alone / step_sec(profile)), by_time, ratios),
        tokens_per_step=combine_spreads(per_step, by_step, None),
        step=StepTime(*mean(sec).tolist()),
        autoregressive_sec=alone,
        paper_speedup=None,
        replayed=False,
    )


def predicted_speedup(
    tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile, *, context: float | None = None
) -> float:
    """Return this tree's predicted speedup without an interval; see `predict`."""
    greedy = is_greedy(acceptance)
    cost = step_time(tree, profile, context=context, greedy=greedy).total_sec
    return tokens_per_step(tree, acceptance) * autoregressive_sec(profile, context=context, greedy=greedy) / cost


def best_chain(acceptance: AcceptanceVector, profile: HardwareProfile, *, longest: int = 32) -> TokenTree:
    """Return the chain of 1 to `longest` drafted tokens that has the largest predicted speedup."""
    lengths = range(1, min(longest, profile.max_size - 1) + 1)
    return max((chain_tree(n) for n in lengths), key=lambda tree: predicted_speedup(tree, acceptance, profile))


def fastest_chains(acceptance: AcceptanceVector, profile: HardwareProfile) -> TokenTree:
    """Return the independent chains with the largest predicted speedup, among usual shapes of at least two chains."""
    shapes = [(k, length) for k in (2, 3, 4, 5, 8, 16) for length in (2, 4, 8, 16, 48) if k * length < profile.max_size]
    trees = [independent_chains(k, length) for k, length in shapes or [(1, max(profile.max_size - 1, 0))]]
    return max(trees, key=lambda tree: predicted_speedup(tree, acceptance, profile))


def tokens_per_step(tree: TokenTree, acceptance: AcceptanceVector) -> float:
    """Return tokens per step on the measured texts, or F(T) if the vector does not store their ranks."""
    texts = replay(tree, acceptance)
    return expected_tokens(tree, acceptance) if texts is None else texts.tokens_per_step


def tokens_estimate(tree: TokenTree, acceptance: AcceptanceVector) -> Estimate:
    """Return `tokens_per_step` with its interval."""
    tokens, steps, resampled = _tokens_and_steps(tree, acceptance)
    samples = resample_rates(tokens, steps, None) if len(tokens) > 1 else resampled
    value = float(tokens.sum() / steps.sum())
    unseen = unseen_share(tokens, steps, resampled, acceptance.trials)
    return widen_by_unseen_share(combine_spreads(value, samples, None), value, tree.depth, unseen)


class WithoutDepth(NamedTuple):
    """The tree that would be planned if acceptance at every depth were the same as at the first.

    Attributes:
        promised: the tree's predicted speedup under that assumption.
        speedup: the tree's predicted speedup with the measured acceptance by depth.
        loss: share of the achievable speedup that this tree loses.
    """

    size: int
    depth: int
    promised: float
    speedup: float
    loss: float


def without_depth(
    tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile, **bounds: int
) -> WithoutDepth | None:
    """Compare a tree with the one planned without `by_depth`; return None if the vector lacks it."""
    if acceptance.by_depth is None:
        return None
    flat = replace(acceptance, by_depth=None)
    other = plan_tree(flat, profile, **bounds)
    promised = predicted_speedup(other, flat, profile)
    speedup = predicted_speedup(other, acceptance, profile)
    loss = 1.0 - speedup / predicted_speedup(tree, acceptance, profile)
    return WithoutDepth(other.size, other.depth, promised, speedup, loss)


def evaluate_shape(tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile) -> BestShape:
    """Return a tree's shape with its exact tokens per step and speedup, which a surface only interpolates."""
    speedup = predicted_speedup(tree, acceptance, profile)
    return BestShape(tree.size, tree.depth, speedup, tokens_per_step(tree, acceptance))


def prompts_for(tree: TokenTree, acceptance: AcceptanceVector, *, within: float = 0.05) -> int | None:
    """Return how many prompts narrow the 95% interval of tokens per step to ±`within`; None if unknown."""
    texts = replay(tree, acceptance)
    if texts is None or len(texts.tokens) < 2:
        return None
    mean = texts.tokens_per_step
    # To first order, each prompt contributes (tokens - mean * steps) / total steps to the error in the ratio of totals.
    spread = np.std(texts.tokens - mean * texts.steps, ddof=1) / (mean * texts.steps.mean())
    return int(np.ceil((NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2) * spread / within) ** 2))


def _tokens_and_steps(
    tree: TokenTree, acceptance: AcceptanceVector
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the tokens and steps of each text, [m], and None.

    Without texts, return the expected tokens of a single step, its step count of 1, and its resampled tokens.
    """
    texts = replay(tree, acceptance)
    if texts is not None:
        return texts.tokens, texts.steps, None
    vectors = acceptance.resamples(COMPUTED_RESAMPLES)
    resampled = None if vectors is None else np.array([expected_tokens(tree, vector) for vector in vectors])
    return np.array([expected_tokens(tree, acceptance)]), np.ones(1), resampled


def resample_rates(tokens: np.ndarray, spent: np.ndarray, prompts: int | None) -> np.ndarray:
    """Return total tokens divided by total steps (or seconds), [m] both, for resampled prompts, float64 [r]."""
    picks = resample_prompts(len(tokens))
    samples = (picks @ tokens) / (picks @ spent)
    if prompts is not None:  # the prompts to be decoded are another random sample
        picks = resample_prompts(len(tokens), seed=1, drawn=prompts)
        samples = samples * (picks @ tokens) / (picks @ spent) * spent.sum() / tokens.sum()
    return samples


def resample_time_ratios(
    profile: HardwareProfile,
    step_sec: Callable[[HardwareProfile], float],
    *,
    context: float | None,
    greedy: bool,
    prompts: int | None = None,
) -> np.ndarray | None:
    """Return the time of an autoregressive step divided by that of a tree's step for resampled profiles, float64 [r].

    Args:
        prompts: as in `predict`. Times are assumed to vary during decoding as they did between the profile's rounds,
            independently with and without a tree.
    """
    profiles = _resampled_profiles(profile, None, 2)
    if profiles is None:
        return None
    ratios = _resampled_plain_sec(profile, None, context, greedy) / np.array([step_sec(times) for times in profiles])
    if prompts is not None:
        plain = _resampled_plain_sec(profile, prompts, context, greedy)
        profiles = _resampled_profiles(profile, prompts, 4) or []
        ratios = ratios * plain / np.array([step_sec(times) for times in profiles])
    return ratios


@lru_cache(maxsize=24)  # many trees use one profile; each number of prompts needs three entries
def _resampled_profiles(profile: HardwareProfile, rounds: int | None, seed: int) -> list[HardwareProfile] | None:
    return profile.resampled(COMPUTED_RESAMPLES, np.random.default_rng(seed), rounds=rounds)


@lru_cache(maxsize=16)
def _resampled_plain_sec(
    profile: HardwareProfile, rounds: int | None, context: float | None, greedy: bool
) -> np.ndarray:
    """Return the seconds of an autoregressive step for resampled profiles, float64 [r]."""
    profiles = _resampled_profiles(profile, rounds, 2 if rounds is None else 3) or []
    return np.array([autoregressive_sec(times, context=context, greedy=greedy) for times in profiles])


def combine_spreads(value: float, samples: np.ndarray | None, factors: np.ndarray | None) -> Estimate:
    """Return a value with the combined spread of tokens and times, float64 [r] each, which are assumed independent."""
    if samples is None and factors is None:
        return Estimate(value, None, None)
    spread = np.ones(RESAMPLES)
    for part in (samples, factors):
        if part is not None:
            spread = spread * np.resize(part / np.mean(part), RESAMPLES)
    return estimate(value, value * spread)
