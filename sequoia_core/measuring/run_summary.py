"""Summarise a decoding run, and compare it with its baseline and its prediction. s = steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

OUTCOME_TOLERANCE = 0.1  # a prediction without an interval counts as right up to this relative error
PHASES = ("draft", "verify", "walk", "commit")


class Baseline(NamedTuple):
    """Autoregressive decoding for comparison: number of tokens, and total seconds spent in steps."""

    tokens: int
    seconds: float

    @property
    def tokens_per_sec(self) -> float | None:
        return _ratio(self.tokens, self.seconds)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run; values that are not yet known are None.

    Attributes:
        tokens, steps: number of committed tokens and of target passes.
        tokens_per_step: tokens ÷ steps; `expected_tokens` is the predicted value F.
        tokens_per_sec, baseline_per_sec: tokens ÷ seconds spent in steps, with and without the tree; both exclude the
            time for reading the prompt.
        drafted_share: fraction of the committed tokens that the draft proposed.
        speedup: tokens_per_sec ÷ baseline_per_sec; `predicted_speedup` is the predicted value, and
            `predicted_interval` the interval for a single prompt.
        step_cost: seconds per step ÷ seconds per autoregressive token; `predicted_cost` is the predicted value
            t(n) + d·c.
        phase_share: fractions of the step time spent on draft, verify, walk and commit.
    """

    tokens: int
    steps: int
    tokens_per_step: float | None
    tokens_per_sec: float | None
    drafted_share: float | None
    baseline_per_sec: float | None
    speedup: float | None
    expected_tokens: float | None
    predicted_speedup: float | None
    predicted_interval: tuple[float, float] | None
    step_cost: float | None
    predicted_cost: float | None
    phase_share: tuple[float, float, float, float] | None

    @property
    def outcome(self) -> Literal["held", "beaten", "missed"] | None:
        """The result of comparing the measured speedup with the prediction; None if one is missing or 0 was predicted.

        The prediction "held" if the measured speedup is inside its interval or, without one, within a tenth of it.
        """
        ratio = _ratio(self.speedup, self.predicted_speedup)
        if ratio is None or self.speedup is None:
            return None
        if self.predicted_interval is not None:
            low, high = self.predicted_interval
            if low <= self.speedup <= high:
                return "held"
            return "beaten" if self.speedup > high else "missed"
        if abs(ratio - 1) <= OUTCOME_TOLERANCE:
            return "held"
        return "beaten" if ratio > 1 else "missed"

    @property
    def tokens_ratio(self) -> float | None:
        """Measured tokens per step ÷ expected tokens per step."""
        return _ratio(self.tokens_per_step, self.expected_tokens)

    @property
    def cost_ratio(self) -> float | None:
        """Measured step cost ÷ predicted step cost."""
        return _ratio(self.step_cost, self.predicted_cost)

    @property
    def slowest_phase(self) -> str | None:
        """The phase in `PHASES` that takes the most time."""
        return None if self.phase_share is None else PHASES[int(np.argmax(self.phase_share))]


def summarize_run(
    committed: Sequence[int],
    bonus: Sequence[bool],
    phase_sec: Sequence[Sequence[float]],
    *,
    baseline: Baseline | None = None,
    expected_tokens: float | None = None,
    predicted_speedup: float | None = None,
    predicted_interval: tuple[float, float] | None = None,
) -> RunSummary:
    """Summarise a run, which may still be in progress.

    Args:
        committed: number of tokens committed by each step, int [s].
        bonus: whether the last token of each step was a bonus token, bool [s].
        phase_sec: seconds spent on draft, verify, walk and commit, float [s, 4].
        expected_tokens, predicted_speedup, predicted_interval: predicted tokens per step, speedup over autoregressive
            decoding, and the speedup's 95 % interval; None without a prediction.
    """
    steps = len(committed)
    tokens = sum(committed)
    phases = np.sum(phase_sec, axis=0).tolist() if steps else []
    step_sec = _ratio(sum(phases), steps)
    tokens_per_sec = _ratio(tokens, sum(phases))
    baseline_per_sec = None if baseline is None else baseline.tokens_per_sec
    return RunSummary(
        tokens=tokens,
        steps=steps,
        tokens_per_step=_ratio(tokens, steps),
        tokens_per_sec=tokens_per_sec,
        drafted_share=_ratio(tokens - sum(bonus), tokens),
        baseline_per_sec=baseline_per_sec,
        speedup=_ratio(tokens_per_sec, baseline_per_sec),
        expected_tokens=expected_tokens,
        predicted_speedup=predicted_speedup,
        predicted_interval=predicted_interval,
        step_cost=None if step_sec is None or baseline_per_sec is None else step_sec * baseline_per_sec,
        predicted_cost=_ratio(expected_tokens, predicted_speedup),
        phase_share=tuple(phase / sum(phases) for phase in phases) if sum(phases) else None,
    )


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
