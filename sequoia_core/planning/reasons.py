"""Explain the difference between the predicted and the measured speedup of a run."""

from dataclasses import dataclass
from math import exp, log
from typing import Literal, NamedTuple

from .prediction import Prediction
from .step_time import StepTime

Part = Literal["acceptance", "verifying", "drafting", "overhead", "baseline", "context"]
MIN_EFFECT = 0.03  # smaller effects on the speedup count as noise


class Measured(NamedTuple):
    """The measured speed of a run.

    Attributes:
        step: mean seconds per step.
        autoregressive_sec: seconds per token without speculation; None if not measured.
    """

    tokens_per_step: float
    step: StepTime
    autoregressive_sec: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One part of the difference between the predicted and the measured speedup.

    Attributes:
        part: "acceptance" (tokens per step), "verifying", "drafting" or "overhead" (seconds per step), "baseline"
            (seconds per token without speculation), or "context" (tokens in the cache).
        effect: factor by which this part alone changes the speedup; 0.9 means 10% less.
        expected, found: predicted and measured value, in tokens or seconds.
    """

    part: Part
    effect: float
    expected: float
    found: float


def context_reason(profiled: Prediction, run: Prediction, *, profiled_at: float, run_at: float) -> Reason | None:
    """Return the effect of the run's context length, instead of the profile's, on the speedup; None if it is small."""
    effect = run.speedup.value / profiled.speedup.value
    return Reason("context", effect, profiled_at, run_at) if abs(log(effect)) >= MIN_EFFECT else None


def reasons(prediction: Prediction, measured: Measured) -> list[Reason]:
    """Return the reasons why a run was slower or faster than predicted, the most costly first.

    Effects below `MIN_EFFECT` are omitted. The effect of the step time is divided in proportion to each part's change.
    """
    predicted = prediction.step
    taken = measured.step
    tokens = prediction.tokens_per_step.value
    parts = [Reason("acceptance", measured.tokens_per_step / tokens, tokens, measured.tokens_per_step)]
    difference = taken.total_sec - predicted.total_sec
    total_effect = log(predicted.total_sec / taken.total_sec)
    fields: dict[Part, str] = {"verifying": "verify_sec", "drafting": "draft_sec", "overhead": "overhead_sec"}
    for part, name in fields.items():
        expected = getattr(predicted, name)
        found = getattr(taken, name)
        share = (found - expected) / difference if abs(difference) > 1e-12 else 0.0
        parts.append(Reason(part, exp(total_effect * share), expected, found))
    if measured.autoregressive_sec is not None:
        alone = prediction.autoregressive_sec
        parts.append(Reason("baseline", measured.autoregressive_sec / alone, alone, measured.autoregressive_sec))
    return sorted((r for r in parts if abs(log(r.effect)) >= MIN_EFFECT), key=lambda reason: reason.effect)
