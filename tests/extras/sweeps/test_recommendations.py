"""Predicted speedups agree with `predict`; recommendations name what pays and what is uncertain."""

import numpy as np
import pytest

from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import predict
from sequoia_core.planning.step_time import autoregressive_sec, step_parts
from sequoia_extras.sweeps.compare import Setting, compare_sweep
from sequoia_extras.sweeps.recommendations import Speed, paired_ratio, predict_speeds, recommend_drafts
from tests.extras.sweeps.hand_made import decoded, measured, profile, table

CODE = Setting(0.0, 1.0, "code")
GOOD = [1, 1, 1, 2, 1, 1, 1, 0] * 4
BAD = [0, 0, 3, 0, 0, 1, 0, 0] * 4


def speeds_of(rows, *profiles):
    comparison = compare_sweep(rows)
    speeds = predict_speeds(comparison, profiles)
    return comparison, {drafter.name: speeds[drafter, CODE] for drafter in comparison.drafters}, speeds


def answer(rows, *profiles):
    comparison, _, speeds = speeds_of(rows, *profiles)
    (found,) = recommend_drafts(comparison, speeds, CODE)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_draft_has_the_speedup_of_its_planned_tree(temperature):
    rows = table(*(measured(p, GOOD[n:], temperature=temperature) for n, p in enumerate("abc")))
    comparison = compare_sweep(rows)
    times = profile(overhead_sec=np.full(5, 1e-3), sampling_sec=np.full(5, 1e-3))
    (cell,) = comparison.cells.values()
    (speed,) = predict_speeds(comparison, [profile("other"), times]).values()
    tree = plan_tree(cell.vector, times, max_size=8)
    assert isinstance(speed, Speed) and speed.tree == tree and 1 < tree.size <= 8
    expected = predict(tree, cell.vector, times).speedup
    assert speed.speedup.value == pytest.approx(expected.value)
    assert speed.speedup.high > expected.high  # wider, because there are three prompts


@pytest.mark.parametrize("both", [False, True])
def test_a_decode_has_the_speedup_of_its_recorded_steps(both):
    steps = {"a": [4, 1], "b": [8, 4, 1]}
    rows = table(*(decoded(name, tokens, both=both) for name, tokens in steps.items()))
    times = profile(growing_sec=np.array([2e-3, 3e-3]))
    _, found, _ = speeds_of(rows, times)
    (speed,) = found.values()
    widths = np.array([[1, 1] if both else [0, 0]])
    step = np.sum(step_parts(np.array([4]), widths, times, growing=both))
    assert speed.speedup.value == pytest.approx(18 * autoregressive_sec(times) / (5 * step))
    assert speed.prompts["seconds"].tolist() == pytest.approx([2 * step, 3 * step])
    assert speed.speedup.low < speed.speedup.value < speed.speedup.high and speed.tree is None


def test_missing_times_are_named_instead_of_a_speedup():
    rows = table(measured("a", GOOD), decoded("a", [2]), decoded("a", [2], both=True, nodes=32))
    found = speeds_of(rows, profile("another"))[1]
    assert found["small"] == "no times for big ← small in float32"
    assert isinstance(found["lookup"], Speed)  # any profile of its target fits
    assert speeds_of(rows, profile())[1]["small + lookup"] == "its trees have 32 nodes, but the profile ends at 16"
    for other in ({"dtype_used": "bfloat16"}, {"offload": "disk"}, {"target": "huge"}):
        changed = table(decoded("a", [2]) | other)
        assert isinstance(speeds_of(changed, profile())[1]["lookup"], str), other
    assert answer(rows, profile("another", target="huge")).best is None


def test_the_fastest_is_recommended_with_the_runner_up():
    rows = table(*(measured(p, GOOD) for p in "abc"), *(decoded(p, [2] * 16, nodes=2) for p in "abc"))
    found = answer(rows, profile())
    assert found.best.name == "small"
    assert found.summary.startswith("At T = 0, code: small pays: ") and " to " in found.summary
    assert "The runner-up is lookup, " in found.details and "cannot be distinguished" not in found.details
    assert ". Only trees of one size were decoded for lookup; another size may be faster here" in found.details


def test_none_pays_where_no_interval_lies_above_1():
    rows = table(*(measured(p, BAD) for p in "abc"), *(decoded(p, [1] * 32, nodes=8) for p in "abc"))
    slow = profile(draft_sec=0.05)
    found = answer(rows, slow)
    assert found.best is None
    assert "no draft pays, because no interval lies above 1×; the best is small, 1.00×" in found.summary
    alone = speeds_of(rows, slow)[1]["small"]
    assert alone.tree.size == 1 and alone.speedup.value == pytest.approx(1.0) and not alone.pays


def test_an_insignificant_difference_is_reported():
    one = {"a": [8, 8], "b": [2, 2], "c": [4, 4], "d": [6, 2]}
    other = {"a": [7, 9], "b": [2, 2], "c": [8], "d": [4, 4]}
    rows = table(
        *(decoded(name, tokens) for name, tokens in one.items()),
        *(decoded(name, tokens, both=True) for name, tokens in other.items()),
    )
    found = answer(rows, profile(draft_sec=1e-4))
    assert (
        found.best.name == "small + lookup"
        and "; the two cannot be distinguished: on the same prompts" in found.details
    )


def test_two_drafters_are_compared_on_their_common_prompts():
    """The second is worse on every shared prompt by the same factor: its own easy prompt changes nothing."""
    rows = table(
        *(decoded(p, tokens) for p, tokens in (("a", [8, 8]), ("b", [2, 2]))),
        *(decoded(p, tokens, both=True) for p, tokens in (("a", [4] * 4), ("b", [1] * 4), ("c", [16]))),
    )
    free = profile(draft_sec=1e-9)
    _, found, _ = speeds_of(rows, free)
    ratio = paired_ratio(found["lookup"], found["small + lookup"])
    assert ratio == pytest.approx(Estimate(2.0, 2.0, 2.0), rel=1e-3)  # errors of a shared profile cancel out


def test_timings_match_drafters_by_file_hashes():
    rows = table(measured("a", GOOD), measured("b", GOOD))
    for hashes, expected in (({"target_hash": "t", "draft_hash": "small"}, Speed), ({"target_hash": "older"}, str)):
        times = profile(target="moved", draft="moved")
        times.meta.update(hashes)
        assert isinstance(speeds_of(rows, times)[1]["small"], expected)


def test_the_fastest_size_on_this_hardware_counts():
    """Larger trees commit more tokens; whether that pays depends on what a node costs."""
    tokens = {4: [3] * 8, 8: [4] * 6}
    rows = table(*(decoded(p, tokens[n], nodes=n, max_size=n) for p in "abc" for n in tokens))
    dear = profile()
    object.__setattr__(dear, "verify_sec", 0.01 * dear.sizes)
    found = [speeds_of(rows, times)[1]["lookup"] for times in (profile(), dear)]
    assert [speed.sizes for speed in found] == [(8, 2), (4, 2)]
    assert answer(rows, profile()).details == ""
    assert found[0].prompts["steps"].tolist() == [6] * 3 and found[1].prompts["steps"].tolist() == [8] * 3
    larger = table(*(decoded(p, [9], nodes=n, max_size=n) for p in "ab" for n in (16, 32)))
    assert speeds_of(larger, profile())[1]["lookup"].sizes == (16, 1)  # nothing is known beyond the profile


def test_drafters_with_different_profiles_are_compared_by_speedup():
    """Where the target takes twice as long alone, equal seconds are twice the speedup."""
    slow = profile("other", target="big")
    object.__setattr__(slow, "verify_sec", 2 * slow.verify_sec)
    object.__setattr__(slow, "verify_samples", tuple((2 * a, 2 * b) for a, b in slow.verify_samples))
    rows = table(
        *(decoded(p, [4] * 4, both=True) for p in "ab"),
        *(decoded(p, [4] * 4, both=True, pair="other", draft_hash="other") for p in "ab"),
    )
    _, found, _ = speeds_of(rows, profile(draft_sec=1e-9), slow)
    first = found["small + lookup"]
    second = found["other + lookup"]
    ratio = paired_ratio(first, second)
    assert ratio.value == pytest.approx(first.speedup.value / second.speedup.value)
    assert ratio.low < ratio.value < ratio.high  # errors of two profiles are independent
