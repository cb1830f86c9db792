"""Reasons multiply to the whole difference, and the largest loss comes first."""

from dataclasses import replace
from math import prod

import pytest

from sequoia_core.design.bootstrap import Estimate
from sequoia_core.design.prediction import Measured, Prediction, Reason, context_reason, reasons
from sequoia_core.design.step_time import StepTime

PREDICTED = Prediction(
    speedup=Estimate(2.0, None, None), tokens_per_step=Estimate(3.0, None, None), step=StepTime(0.010, 0.004, 0.001),
    autoregressive_sec=0.010, paper_speedup=2.2, replayed=False,
)  # fmt: skip


def test_effects_multiply_to_the_whole_difference():
    measured = Measured(2.4, 0.013, 0.005, 0.002, 0.011)
    found = reasons(PREDICTED, measured)
    real = 2.4 * 0.011 / 0.020
    assert prod(reason.effect for reason in found) == pytest.approx(real / 2.0)
    assert [reason.part for reason in found][0] == "acceptance" and found[-1].part == "baseline"
    assert [reason.effect for reason in found] == sorted(reason.effect for reason in found)


def test_what_went_as_predicted_is_not_named():
    assert reasons(PREDICTED, Measured(3.0, 0.010, 0.004, 0.001, 0.010)) == []
    found = reasons(PREDICTED, Measured(3.02, 0.010, 0.008, 0.001))
    assert [reason.part for reason in found] == ["drafting"]
    assert found[0].effect == pytest.approx(15 / 19) and (found[0].expected, found[0].found) == (0.004, 0.008)


def test_a_context_of_its_own_is_named_where_it_matters():
    slower = replace(PREDICTED, speedup=Estimate(1.8, None, None))
    found = context_reason(PREDICTED, slower, profiled_at=128, run_at=900)
    assert found == Reason("context", pytest.approx(0.9), 128, 900)
    assert context_reason(PREDICTED, PREDICTED, profiled_at=128, run_at=900) is None


def test_parts_that_cancel_are_both_named():
    found = reasons(PREDICTED, Measured(3.0, 0.008, 0.006, 0.0011))
    assert {reason.part for reason in found} == {"drafting", "verifying"}
    assert prod(reason.effect for reason in found) == pytest.approx(0.015 / 0.0151, rel=0.02)
