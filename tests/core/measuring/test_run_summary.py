"""Run summaries by hand, and with missing measurements."""

import pytest

from sequoia_core.measuring.run_summary import Baseline, summarize_run


def summary(step_sec: float = 0.02, **options):
    phases = [[step_sec / 4, step_sec / 2, step_sec / 4, 0.0]] * 10
    return summarize_run([3] * 10, [True] * 10, phases, **options)


def test_summary_by_hand():
    found = summary(baseline=Baseline(30, 0.45), expected_tokens=3.0, predicted_speedup=2.25)
    assert (found.tokens, found.steps, found.tokens_per_step) == (30, 10, 3.0)
    assert found.drafted_share == pytest.approx(2 / 3)
    assert found.tokens_per_sec == pytest.approx(150) and found.speedup == pytest.approx(2.25)
    assert found.cost_ratio == pytest.approx(1.0) and found.tokens_ratio == pytest.approx(1.0)
    assert found.phase_share == pytest.approx((0.25, 0.5, 0.25, 0.0)) and found.slowest_phase == "verify"


@pytest.mark.parametrize(("predicted", "outcome"), [(2.25, "held"), (2.1, "held"), (1.5, "beaten"), (3.0, "missed")])
def test_a_prediction_without_an_interval_holds_within_a_tenth(predicted: float, outcome: str):
    assert summary(baseline=Baseline(30, 0.45), predicted_speedup=predicted).outcome == outcome


def test_speed_is_total_tokens_over_total_seconds():
    phases = [[0.01, 0.01, 0.0, 0.0]] * 9 + [[0.5, 0.32, 0.0, 0.0]]
    found = summarize_run([2] * 9 + [3], [True] * 10, phases, baseline=Baseline(30, 3.0))
    assert found.tokens_per_sec == pytest.approx(21 / 1.0) and found.speedup == pytest.approx(2.1)
    assert found.step_cost == pytest.approx(0.1 * 10) and found.phase_share[0] == pytest.approx(0.59)


def test_missing_measurements_give_none():
    found = summarize_run([], [], [], baseline=Baseline(0, 0.0))
    assert (found.tokens, found.steps, found.tokens_per_step, found.speedup) == (0, 0, None, None)
    assert (found.outcome, found.tokens_ratio, found.cost_ratio, found.slowest_phase) == (None, None, None, None)
    assert summary(baseline=Baseline(30, 0.45), predicted_speedup=0.0).outcome is None  # possible in a file
    assert summary().speedup is None and summary(0.0, baseline=Baseline(1, 1.0)).speedup is None
