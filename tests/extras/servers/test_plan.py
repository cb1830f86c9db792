"""Costs of a server's steps and the draft length that pays: lines, passes, batches, intervals, gains."""

import re
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import HardwareProfile
from sequoia_extras.servers.chain_acceptance import chain_acceptance
from sequoia_extras.servers.costs import TimedSetting, assumed_costs, build_costs
from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.plan import ServerPlan, plan_server
from tests.extras.servers.samples import read, step_records

SIZES = np.array([1, 2, 4, 8, 16, 32])


def profile(slope: float = 0.05, draft: float = 0.1) -> HardwareProfile:
    return HardwareProfile(SIZES, 1 + slope * (SIZES - 1), draft, device="test", dtype="float32")


@pytest.fixture(scope="module")
def chains():
    return chain_acceptance(read(step_records()), new_tokens=128)


def geometric(share: float, *, drafts: int = 10_000, longest: int = 8):
    positions = tuple(round(drafts * share**place) for place in range(1, longest + 1))
    return chain_acceptance(ServerCounts("vllm", "counters", drafts, drafts * longest, sum(positions), positions))


def test_a_step_costs_one_wide_pass_and_k_draft_passes():
    costs = build_costs(profile())
    assert costs.step_sec(0) == pytest.approx(1)
    assert costs.step_sec(3) == pytest.approx(1 + 0.05 * 3 + 3 * 0.1)
    assert costs.step_sec(3, 8) == pytest.approx(1 + 0.05 * 31 + 3 * 0.1)
    assert np.isnan(costs.step_sec(4, 8))  # 40 tokens were not timed
    assert "assumed to be zero" in costs.notes[0]
    assert build_costs(profile(), drafts_free=True).step_sec(3) == pytest.approx(1.15)


def test_the_fixed_cost_is_fitted_and_not_forced_through_zero():
    fixed, each = 0.4, 0.07
    settings = [TimedSetting(k, 1 + 0.05 * k + (fixed + each * k if k else 0)) for k in (0, 2, 6)]
    for known in (profile(), None):
        costs = build_costs(known, settings)
        assert costs.step_sec(0) == 1
        for k in (1, 3, 4, 8):  # settings that were not timed
            assert costs.step_sec(k) == pytest.approx(1 + 0.05 * k + fixed + each * k)
    assert build_costs(profile(), settings).step_sec(3, 4) == pytest.approx(1 + 0.05 * 15 + fixed + each * 3)
    assert np.isnan(build_costs(None, settings).step_sec(3, 4))
    noise = [TimedSetting(0, 1.0), TimedSetting(2, 1.5), TimedSetting(4, 1.4)]  # a draft that gives time back
    assert build_costs(None, noise).step_sec(3) == pytest.approx(1.45)


def test_the_best_k_matches_a_manual_calculation(chains):
    plan = plan_server(chains, build_costs(profile()), [1, 4])
    for found in plan.batches:
        cells = [k for k in range(9) if found.batch * (k + 1) <= 32]
        seconds = [1 + 0.05 * (found.batch * (k + 1) - 1) + 0.1 * k for k in cells]
        speeds = [found.batch * chains.tokens_per_step[k] / sec for k, sec in zip(cells, seconds, strict=True)]
        assert [each.value for each in found.tokens_per_sec] == pytest.approx(speeds)
        assert found.best == int(np.argmax(speeds)) and found.best in found.flat
        assert [each.value for each in found.speedup] == pytest.approx([speed / speeds[0] for speed in speeds])
        assert all(each.low <= each.value <= each.high for each in found.speedup)
        assert found.best_low <= found.best <= found.best_high
        assert found.relative_speed(2) == pytest.approx(speeds[2] / max(speeds))
    assert plan.batches[1].relative_speed(8) is None


def test_the_sentence_gives_the_setting_for_each_batch_size():
    wide = plan_server(geometric(0.7), build_costs(profile(slope=0.1)), [1, 8])
    assert re.sub(r", \d.\d\d to \d.\d\d", "", wide.sentence(4)) == (
        "Use K = 3 for one request at a time (1.58× the speed without speculation; "
        "the current K = 4 reaches 97% of the best speed), "
        "K = 1 for 8 concurrent requests (1.11× the speed without speculation). If K = 8 is drafted at any load, "
        "verifying only the first tokens is faster: 5 for one request at a time (1.04×)."
    )
    assert "now reaches" not in plan_server(geometric(0.7), build_costs(profile(slope=0.1))).sentence(3)
    weak = plan_server(geometric(0.35), build_costs(profile(slope=0.15, draft=0.05)), [4]).sentence(0)
    assert weak == "Use no speculation for 4 concurrent requests. Turn speculation off at batch size 4 and above."


@pytest.mark.parametrize("per_token", [1e-9, 0.02])
def test_the_best_drafted_and_verified_lengths_match_an_enumeration(per_token):
    """Passes take constant time up to 64 tokens, then grow; drafting K tokens takes `per_token` each."""
    sizes = 2 ** np.arange(11)
    chains = geometric(0.8, longest=7)

    def speed(batch, drafted, verified):
        seconds = max(1.0, batch * (verified + 1) / 64) + per_token * drafted
        return batch * chains.tokens_per_step[verified] / seconds

    passes = HardwareProfile(sizes, np.maximum(1.0, sizes / 64), per_token, device="test", dtype="float32")
    loads = (1, 16, 32)
    timed = [
        TimedSetting(k, load * chains.tokens_per_step[k] / speed(load, k, k), load) for load in loads for k in (0, 3, 7)
    ]
    plan = plan_server(chains, build_costs(passes), [*loads, 64])
    for found in plan.batches:
        every = {(k, m): speed(found.batch, k, m) for k in range(8) for m in range(k + 1)}
        assert every[found.best, found.best] == pytest.approx(max(every.values()))
        shares = [rate / every[7, 7] for rate in (every[0, 0], *(every[7, m] for m in range(1, 8)))]
        assert found.prefix == pytest.approx(shares)
        assert found.verified == (None if max(shares) < 1.02 else int(np.argmax(shares)) or None)
    assert [each.verified for each in plan.batches][:2] == [None, 3] and "3 for 16 concurrent" in plan.sentence(7)
    for found in plan_server(chains, build_costs(None, timed), loads).batches:
        # Without pass times, the gain may be underestimated, since slopes are averages.
        if found.verified:
            gain = speed(found.batch, 7, found.verified) / speed(found.batch, 7, 7)
            assert 1.02 < gain == pytest.approx(found.prefix[found.verified], rel=0.15)
        assert (found.verified is None) is (found.batch == 1)


def test_off_from_requires_off_at_every_larger_batch_size():
    one = plan_server(geometric(0.5), build_costs(profile(draft=0.3))).batches[0]
    rows = tuple(replace(one, batch=batch, best=best) for batch, best in ((1, 0), (2, 3), (4, 0), (8, 0)))
    assert ServerPlan(rows, build_costs(profile()), ()).off_from == 4
    assert ServerPlan(rows[:2], build_costs(profile()), ()).off_from is None


def test_unknown_batch_sizes_are_named(chains):
    plan = plan_server(chains, build_costs(profile()), [1, 64])
    assert list(plan.best) == [1]
    assert plan.notes[-1] == "Batch size 64: passes of that size were not timed."
    with pytest.raises(ValueError, match="found no costs at batch size 64"):
        plan_server(chains, build_costs(profile()), [64])


def test_more_requests_narrow_the_best_k():
    chains = (geometric(0.6, drafts=drafts) for drafts in (60, 200_000))
    few, many = (plan_server(each, build_costs(profile())).batches[0] for each in chains)
    assert few.best_low < few.best_high
    assert many.best_low == many.best == many.best_high > 0


def test_the_gain_of_a_better_draft_matches_its_plan():
    def fastest(share, draft):
        plan = plan_server(geometric(share), build_costs(profile(draft=draft))).batches[0]
        return plan.tokens_per_sec[plan.best].value

    found = plan_server(geometric(0.6), build_costs(profile(draft=0.3))).batches[0]
    assert found.better_draft == pytest.approx(fastest(0.8, 0.3) / fastest(0.6, 0.3), rel=1e-3)


def test_a_range_of_costs_spans_the_plans_at_its_ends():
    chains = geometric(0.7)
    found = plan_server(chains, assumed_costs(0.02, 0.2))
    (band,) = found.batches
    ends = [plan_server(chains, build_costs(profile(slope=0, draft=cost))).batches[0] for cost in (0.02, 0.2)]
    assert (band.best_low, band.best_high) == (ends[1].best_low, ends[0].best_high)
    assert [each.high for each in band.speedup] == pytest.approx([each.high for each in ends[0].speedup])
    assert [each.low for each in band.speedup] == pytest.approx([each.low for each in ends[1].speedup])
    for cost in np.linspace(0.02, 0.2, 7):  # the promised share holds between the ends too
        inner = plan_server(chains, build_costs(profile(slope=0, draft=cost))).batches[0]
        assert all(inner.shares[k] >= band.shares[k] - 1e-9 for k in range(9))
    assert band.shares[band.best] == max(band.shares) and not band.tokens_per_sec
    assert found.sentence(8) == (
        "Best K: 3 to 8 or more for one request at a time. K = 4 loses at most 7% of the best speed at any of these "
        "costs (the current K = 8: 22%), predicted 1.5 to 2.6× the speed without speculation."
    )


def test_modelled_and_foreign_times_may_be_off_by_a_factor_of_two():
    known = build_costs(profile(), engine="vllm")
    assert known.factors == (0.5, 2.0) and build_costs(profile(), engine="llama.cpp").factors == (0.5, 2.0)
    timed = replace(profile(), meta={"passes_by": "llama.cpp"})
    assert build_costs(timed, engine="llama.cpp").factors is None and build_costs(timed, engine="vllm").factors
    band = plan_server(geometric(0.7), known).batches[0]
    exact = plan_server(geometric(0.7), build_costs(profile())).batches[0]
    assert band.best_low < exact.best < band.best_high and band.speed_range(exact.best) == "1.3 to 2.1×"
