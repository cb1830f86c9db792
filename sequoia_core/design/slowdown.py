"""Why a run was slower than predicted, or than plain decoding: its parts one by one, the largest first.

A speedup is tokens per step x seconds of an autoregressive token / seconds of a step. Each part is set against its own
prediction; their effects multiply to the whole difference. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Literal, NamedTuple

from .prediction import Prediction

Part = Literal["acceptance", "verifying", "drafting", "overhead", "baseline", "context"]
MATTERS = 0.03  # effects on the speedup below this are noise


class Measured(NamedTuple):
    """What a run did.

    Attributes:
        tokens_per_step: committed tokens ÷ steps.
        verify_sec, draft_sec, overhead_sec: of one step, on average.
        autoregressive_sec: of one token without speculation, measured beside it; None where that was not done.
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
        effect: what it alone makes of the speedup, 0.9 for a tenth less.
        expected, found: tokens, or seconds.
    """

    part: Part
    effect: float
    expected: float
    found: float


def context_reason(profiled: Prediction, run: Prediction, *, profiled_at: float, run_at: float) -> Reason | None:
    """Return what a run's own context makes of the speedup; None where that is little.

    Args:
        profiled, run: predictions at the profile's context and at the run's, in tokens.
    """
    effect = run.speedup.value / profiled.speedup.value
    return Reason("context", effect, profiled_at, run_at) if abs(log(effect)) >= MATTERS else None


def reasons(prediction: Prediction, measured: Measured) -> list[Reason]:
    """Return the parts that made a run slower or faster than predicted, those that cost most first.

    Only effects of at least `MATTERS` are named. The time of a step is shared out among its parts in proportion to what
    each added.
    """
    step, tokens = prediction.step, prediction.tokens_per_step.value
    found = [Reason("acceptance", measured.tokens_per_step / tokens, tokens, measured.tokens_per_step)]
    added = {
        "verifying": (step.verify_sec, measured.verify_sec),
        "drafting": (step.draft_sec, measured.draft_sec),
        "overhead": (step.overhead_sec, measured.overhead_sec),
    }
    difference = measured.step_sec - step.total_sec
    whole = log(step.total_sec / measured.step_sec)
    for part, (expected, real) in added.items():
        share = (real - expected) / difference if abs(difference) > 1e-12 else 0.0
        found.append(Reason(part, exp(whole * share), expected, real))
    if measured.autoregressive_sec is not None:
        alone = prediction.autoregressive_sec
        found.append(Reason("baseline", measured.autoregressive_sec / alone, alone, measured.autoregressive_sec))
    return sorted((r for r in found if abs(log(r.effect)) >= MATTERS), key=lambda r: r.effect)
