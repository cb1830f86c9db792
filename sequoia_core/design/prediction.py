"""Predictions of what decoding with one tree does, with intervals. m = prompts, r = resamples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .bootstrap import COMPUTED_RESAMPLES, LEVEL, RESAMPLES, Estimate, estimate, resampled, unseen_share, widened
from .optimal_trees import expected_tokens
from .plain_trees import chain_tree
from .planning import BestShape, is_greedy, paper_step_cost, plan_tree
from .profile import HardwareProfile
from .replay import replay
from .step_time import StepTime, autoregressive_sec, step_time
from .tree import TokenTree

# by a profile: mean seconds of each prompt's steps, float64 [3, m], of verifying, drafting and the rest
StepParts = Callable[[HardwareProfile], np.ndarray]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What decoding with a tree is expected to do.

    Attributes:
        speedup: against autoregressive decoding of the same target, totals against totals, without prompt reading.
        tokens_per_step: committed tokens per target pass.
        paper_speedup: F(T) / (t(n) + d c), the paper's formula (§3.3); None for trees that differ from step to step.
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
        """Seconds of a step ÷ its tokens."""
        return self.step.total_sec / self.tokens_per_step.value

    def holds(self, measured: float) -> bool | None:
        """Say whether a measured speedup lies within the interval; None where there is no interval."""
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
    """Predict what decoding with this tree does.

    Tokens per step come from the texts behind the vector where it keeps their accepted ranks, else from the vector;
    seconds from the profile. Intervals resample prompts and rounds of timing.

    Args:
        context: tokens in the cache on average; None for as many as the profile was timed with.
        prompts: how many prompts will be decoded to test the prediction; their own spread widens the interval. None for
            the average over all such text.
    """
    greedy = is_greedy(acceptance)
    tokens, steps, again = _tokens_and_steps(tree, acceptance)

    def parts(times: HardwareProfile) -> np.ndarray:
        step = step_time(tree, times, context=context, greedy=greedy)
        return np.array([[step.verify_sec], [step.draft_sec], [step.overhead_sec]])

    prediction = predict_prompts(
        tokens, steps, parts, profile, context=context, greedy=greedy, prompts=prompts, again=again,
        one_prompt=acceptance.of_one_prompt,
    )  # fmt: skip
    paper = expected_tokens(tree, acceptance) / float(paper_step_cost(tree.size, tree.depth, profile))
    per_step, unseen = prediction.tokens_per_step, unseen_share(tokens, steps, again, acceptance.trials)
    return replace(
        prediction,
        speedup=widened(prediction.speedup, per_step.value, tree.depth, unseen),
        tokens_per_step=widened(per_step, per_step.value, tree.depth, unseen),
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
    again: np.ndarray | None = None,
    one_prompt: bool | None = None,
) -> Prediction:
    """Put a prediction together from what is expected of each prompt.

    Args:
        tokens, steps: [m], totals of each prompt.
        parts: of one column where the steps of all prompts take equally long.
        again: tokens per step of resampled vectors, float64 [r], where there is no sample of prompts.
        one_prompt: whether the sample is a single prompt, so that there is no interval; None where `tokens` shows it.
    """

    def mean(sec: np.ndarray) -> np.ndarray:
        return sec[:, 0] if sec.shape[1] == 1 else sec @ steps / steps.sum()

    def step_sec(times: HardwareProfile) -> float:
        return float(mean(parts(times)).sum())

    sec, alone = parts(profile), autoregressive_sec(profile, context=context, greedy=greedy)
    by_step = by_time = again
    if len(tokens) > 1:
        by_step, by_time = (rate_samples(tokens, spent, prompts) for spent in (steps, steps * sec.sum(axis=0)))
    ratios = None
    if not (len(tokens) < 2 if one_prompt is None else one_prompt):  # how times vary says nothing about texts
        ratios = time_ratios(profile, step_sec, context=context, greedy=greedy, prompts=prompts)
    per_step = float(tokens.sum() / steps.sum())
    return Prediction(
        speedup=combined(per_step * (alone / step_sec(profile)), by_time, ratios),
        tokens_per_step=combined(per_step, by_step, None),
        step=StepTime(*mean(sec).tolist()),
        autoregressive_sec=alone,
        paper_speedup=None,
        replayed=False,
    )


def predicted_speedup(
    tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile, *, context: float | None = None
) -> float:
    """Return the predicted speedup of this tree, without its interval; see `predict`."""
    greedy = is_greedy(acceptance)
    cost = step_time(tree, profile, context=context, greedy=greedy).total_sec
    return tokens_per_step(tree, acceptance) * autoregressive_sec(profile, context=context, greedy=greedy) / cost


def best_chain(acceptance: AcceptanceVector, profile: HardwareProfile, *, longest: int = 32) -> TokenTree:
    """Return the chain with the largest predicted speedup, at least one drafted token long."""
    lengths = range(1, min(longest, profile.max_size - 1) + 1)
    return max((chain_tree(n) for n in lengths), key=lambda tree: predicted_speedup(tree, acceptance, profile))


def tokens_per_step(tree: TokenTree, acceptance: AcceptanceVector) -> float:
    """Return what a step yields along the measured texts; F(T) where the vector does not keep their ranks."""
    texts = replay(tree, acceptance)
    return expected_tokens(tree, acceptance) if texts is None else texts.tokens_per_step


def tokens_estimate(tree: TokenTree, acceptance: AcceptanceVector) -> Estimate:
    """Return `tokens_per_step` with its interval, from the sample behind the vector."""
    tokens, steps, again = _tokens_and_steps(tree, acceptance)
    samples = rate_samples(tokens, steps, None) if len(tokens) > 1 else again
    value = float(tokens.sum() / steps.sum())
    unseen = unseen_share(tokens, steps, again, acceptance.trials)
    return widened(combined(value, samples, None), value, tree.depth, unseen)


class WithoutDepth(NamedTuple):
    """The tree that would be planned if every depth were as the first.

    Attributes:
        promised: its speedup as it would be predicted then.
        speedup: as it is predicted by depth.
        loss: share of the speedup that planning by it loses.
    """

    size: int
    depth: int
    promised: float
    speedup: float
    loss: float


def without_depth(
    tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile, **bounds: int
) -> WithoutDepth | None:
    """Compare a tree planned by depth with one planned within the same bounds without; None for no depths."""
    if acceptance.by_depth is None:
        return None
    flat = replace(acceptance, by_depth=None)
    other = plan_tree(flat, profile, **bounds)
    mine, theirs = (predicted_speedup(each, acceptance, profile) for each in (tree, other))
    return WithoutDepth(other.size, other.depth, predicted_speedup(other, flat, profile), theirs, 1.0 - theirs / mine)


def shape_of(tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile) -> BestShape:
    """Return a tree's shape with this very tree's tokens and speedup; a surface interpolates."""
    speedup = predicted_speedup(tree, acceptance, profile)
    return BestShape(tree.size, tree.depth, speedup, tokens_per_step(tree, acceptance))


def prompts_for(tree: TokenTree, acceptance: AcceptanceVector, *, within: float = 0.05) -> int | None:
    """Return how many prompts a 95 % interval of +- `within` of tokens per step needs; None without texts by prompt."""
    texts = replay(tree, acceptance)
    if texts is None or len(texts.tokens) < 2:
        return None
    mean = texts.tokens_per_step
    # The error of a ratio of totals, to first order: each prompt adds (tokens - mean * steps) / total steps.
    spread = np.std(texts.tokens - mean * texts.steps, ddof=1) / (mean * texts.steps.mean())
    return int(np.ceil((NormalDist().inv_cdf((1 + LEVEL) / 2) * spread / within) ** 2))


def _tokens_and_steps(
    tree: TokenTree, acceptance: AcceptanceVector
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return tokens and steps of each text, [m] each; without texts those of one step, and its resamples or None."""
    texts = replay(tree, acceptance)
    if texts is not None:
        return texts.tokens, texts.steps, None
    vectors = acceptance.resamples(COMPUTED_RESAMPLES)
    again = None if vectors is None else np.array([expected_tokens(tree, vector) for vector in vectors])
    return np.array([expected_tokens(tree, acceptance)]), np.ones(1), again


def rate_samples(tokens: np.ndarray, spent: np.ndarray, prompts: int | None) -> np.ndarray:
    """Return tokens ÷ what they took (steps or seconds, both [m]) for prompts drawn again, float64 [r]."""
    picks = resampled(len(tokens))
    samples = (picks @ tokens) / (picks @ spent)
    if prompts is not None:  # the prompts to come are another sample of the same kind, of its own size
        picks = resampled(len(tokens), seed=1, drawn=prompts)
        samples = samples * (picks @ tokens) / (picks @ spent) * spent.sum() / tokens.sum()
    return samples


def time_ratios(
    profile: HardwareProfile, step_sec: Callable[[HardwareProfile], float], *, context: float | None, greedy: bool,
    prompts: int | None = None,
) -> np.ndarray | None:  # fmt: skip
    """Return seconds of an autoregressive step ÷ those of one with a tree, for profiles timed again, float64 [r].

    Args:
        prompts: as for `predict`; while they are decoded the machine is as unsteady as it was from round to round of
            the profile, and never in the same moments with a tree and without.
    """
    profiles = _timed_again(profile, None, 2)
    if profiles is None:
        return None
    ratios = _plain_again(profile, None, context, greedy) / np.array([step_sec(times) for times in profiles])
    if prompts is not None:
        plain = _plain_again(profile, prompts, context, greedy)
        ratios = ratios * plain / np.array([step_sec(times) for times in _timed_again(profile, prompts, 4) or []])
    return ratios


@lru_cache(maxsize=24)  # many trees are predicted from one profile, three of these for a number of prompts
def _timed_again(profile: HardwareProfile, rounds: int | None, seed: int) -> list[HardwareProfile] | None:
    return profile.resampled(COMPUTED_RESAMPLES, np.random.default_rng(seed), rounds=rounds)


@lru_cache(maxsize=16)
def _plain_again(profile: HardwareProfile, rounds: int | None, context: float | None, greedy: bool) -> np.ndarray:
    """Return the seconds of an autoregressive step for resampled profiles, float64 [r]."""
    again = _timed_again(profile, rounds, 2 if rounds is None else 3) or []
    return np.array([autoregressive_sec(times, context=context, greedy=greedy) for times in again])


def combined(value: float, samples: np.ndarray | None, factors: np.ndarray | None) -> Estimate:
    """Return a value with the spread of its tokens and of its times, float64 [r] each, which vary independently."""
    if samples is None and factors is None:
        return Estimate(value, None, None)
    spread = np.ones(RESAMPLES)
    for part in (samples, factors):
        if part is not None:
            spread = spread * np.resize(part / np.mean(part), RESAMPLES)
    return estimate(value, value * spread)


Part = Literal["acceptance", "verifying", "drafting", "overhead", "baseline", "context"]
MIN_EFFECT = 0.03  # effects on the speedup below this are noise


class Measured(NamedTuple):
    """What a run did.

    Attributes:
        autoregressive_sec: of one token without speculation; None where that was not measured.
    """

    tokens_per_step: float
    verify_sec: float
    draft_sec: float
    overhead_sec: float
    autoregressive_sec: float | None = None

    @property
    def step_sec(self) -> float:
        return self.verify_sec + self.draft_sec + self.overhead_sec


@dataclass(frozen=True, slots=True)
class Reason:
    """One part of the difference.

    Attributes:
        part: "acceptance" (tokens per step), "verifying", "drafting" or "overhead" (seconds of a step), "baseline"
            (seconds of a token without speculation), "context" (tokens in the cache).
        effect: the factor by which this part alone changes the speedup; 0.9 is 10 % less.
        expected, found: tokens, or seconds.
    """

    part: Part
    effect: float
    expected: float
    found: float


def context_reason(profiled: Prediction, run: Prediction, *, profiled_at: float, run_at: float) -> Reason | None:
    """Return the effect on the speedup of the run's context, against the profile's (tokens); None where it is small."""
    effect = run.speedup.value / profiled.speedup.value
    return Reason("context", effect, profiled_at, run_at) if abs(log(effect)) >= MIN_EFFECT else None


def reasons(prediction: Prediction, measured: Measured) -> list[Reason]:
    """Return the parts that made a run slower or faster than predicted, those that cost most first.

    Only effects of at least `MIN_EFFECT`. The time of a step is shared out in proportion to what each part added.
    """
    step, tokens = prediction.step, prediction.tokens_per_step.value
    parts = [Reason("acceptance", measured.tokens_per_step / tokens, tokens, measured.tokens_per_step)]
    added: dict[Part, tuple[float, float]] = {
        "verifying": (step.verify_sec, measured.verify_sec),
        "drafting": (step.draft_sec, measured.draft_sec),
        "overhead": (step.overhead_sec, measured.overhead_sec),
    }
    difference = measured.step_sec - step.total_sec
    whole = log(step.total_sec / measured.step_sec)
    for part, (expected, real) in added.items():
        share = (real - expected) / difference if abs(difference) > 1e-12 else 0.0
        parts.append(Reason(part, exp(whole * share), expected, real))
    if measured.autoregressive_sec is not None:
        alone = prediction.autoregressive_sec
        parts.append(Reason("baseline", measured.autoregressive_sec / alone, alone, measured.autoregressive_sec))
    return sorted((r for r in parts if abs(log(r.effect)) >= MIN_EFFECT), key=lambda r: r.effect)
