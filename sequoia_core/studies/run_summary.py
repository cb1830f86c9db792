"""The figures of one decode beside its baseline and its prediction. s = steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

HELD_WITHIN = 0.1  # relative difference up to which a prediction counts as right
PHASES = ("draft", "verify", "walk", "commit")


class Baseline(NamedTuple):
    """Autoregressive decoding beside a run: tokens, and seconds in all of its steps."""

    tokens: int
    seconds: float

    @property
    def tokens_per_sec(self) -> float | None:
        return _ratio(self.tokens, self.seconds)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of a run; None where it did not get that far.

    Attributes:
        tokens, steps: committed tokens and target passes.
        tokens_per_step: their ratio; expected_tokens is its predicted counterpart F.
        tokens_per_sec, baseline_per_sec: all tokens over the seconds of all steps, with the tree and without it; prompt
            reading is excluded on both sides.
        drafted_share: committed tokens that the draft proposed, over all committed tokens.
        speedup: tokens_per_sec / baseline_per_sec; predicted_speedup is the planner's, predicted_interval the
            bounds expected for a single prompt.
        step_cost: seconds of a step over seconds of an autoregressive token; predicted_cost its counterpart t(n) + d·c.
        phase_share: of draft, verify, walk and commit in the seconds of all steps.
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
        """How measured compares with predicted speedup; None where either is missing or 0 was predicted.

        A prediction held when the measured speedup is inside its interval; without one, when it is within a tenth.
        """
        ratio = _ratio(self.speedup, self.predicted_speedup)
        if ratio is None or self.speedup is None:
            return None
        if self.predicted_interval is not None:
            low, high = self.predicted_interval
            return "missed" if self.speedup < low else "beaten" if self.speedup > high else "held"
        if abs(ratio - 1) <= HELD_WITHIN:
            return "held"
        return "beaten" if ratio > 1 else "missed"

    @property
    def tokens_ratio(self) -> float | None:
        """Measured ÷ expected tokens per step."""
        return _ratio(self.tokens_per_step, self.expected_tokens)

    @property
    def cost_ratio(self) -> float | None:
        """Measured ÷ predicted time of a step."""
        return _ratio(self.step_cost, self.predicted_cost)

    @property
    def slowest_phase(self) -> str | None:
        """The one of `PHASES` that takes most of a step."""
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
    """Compute the figures of a run as far as it got.

    Args:
        committed: tokens that each step committed, int [s].
        bonus: whether the last of them was a bonus token, bool [s].
        phase_sec: seconds of draft, verify, walk and commit, float [s, 4].
        baseline: None while nothing was measured.
        expected_tokens: tokens per step; predicted_speedup: against autoregressive; predicted_interval: its 95 %
            bounds. None where nothing was predicted.
    """
    steps, tokens = len(committed), sum(committed)
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


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
