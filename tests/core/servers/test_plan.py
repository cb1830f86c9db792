"""Costs of a server's steps and the draft length that pays: lines, passes, batches, intervals, what would help."""

import re
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import HardwareProfile
from sequoia_core.servers.chain_acceptance import chain_acceptance
from sequoia_core.servers.costs import TimedSetting, costs_of, timed_setting
from sequoia_core.servers.counts import ServerCounts
from sequoia_core.servers.plan import MAX_BATCH, ServerPlan, plan_server
from tests.core.servers.samples import NGRAM, read, step_records, vllm_text

SIZES = np.array([1, 2, 4, 8, 16, 32])


def profile(slope: float = 0.05, draft: float = 0.1) -> HardwareProfile:
    return HardwareProfile(SIZES, 1 + slope * (SIZES - 1), draft, device="test", dtype="float32")


@pytest.fixture(scope="module")
def chains():
    return chain_acceptance(read(step_records()), new_tokens=128)


def geometric(share: float, *, drafts: int = 10_000, longest: int = 8):
    positions = tuple(round(drafts * share**place) for place in range(1, longest + 1))
    return chain_acceptance(ServerCounts("vllm", "counters", drafts, drafts * longest, sum(positions), positions))


def test_a_step_is_one_wide_pass_and_k_draft_passes():
    costs = costs_of(profile())
    assert costs.step_sec(0) == pytest.approx(1)
    assert costs.step_sec(3) == pytest.approx(1 + 0.05 * 3 + 3 * 0.1)
    assert costs.step_sec(3, 8) == pytest.approx(1 + 0.05 * 31 + 3 * 0.1)
    assert np.isnan(costs.step_sec(4, 8))  # 40 tokens were not timed
    assert "counted as nothing" in costs.notes[0]
    assert costs_of(profile(), drafts_free=True).step_sec(3) == pytest.approx(1.15)


def test_the_fixed_cost_comes_from_two_settings_and_never_from_a_line_through_0():
    fixed, each = 0.4, 0.07
    settings = [TimedSetting(k, 1 + 0.05 * k + (fixed + each * k if k else 0)) for k in (0, 2, 6)]
    for known in (profile(), None):
        costs = costs_of(known, settings)
        assert costs.step_sec(0) == 1
        for k in (1, 3, 4, 8):  # settings that were not timed
            assert costs.step_sec(k) == pytest.approx(1 + 0.05 * k + fixed + each * k)
    assert costs_of(profile(), settings).step_sec(3, 4) == pytest.approx(1 + 0.05 * 15 + fixed + each * 3)
    assert np.isnan(costs_of(None, settings).step_sec(3, 4))
    noise = [TimedSetting(0, 1.0), TimedSetting(2, 1.5), TimedSetting(4, 1.4)]  # a draft that gives time back
    assert costs_of(None, noise).step_sec(3) == pytest.approx(1.45)


def test_speeds_become_seconds_of_steps(chains):
    found = timed_setting(4, 650, chains, batch=2)
    assert found == (4, pytest.approx(2 * chains.tokens(4).value / 650), 2)


def test_the_best_k_is_the_fastest_by_hand(chains):
    plan = plan_server(chains, costs_of(profile()), [1, 4])
    for found in plan.batches:
        cells = [k for k in range(9) if found.batch * (k + 1) <= 32]
        seconds = [1 + 0.05 * (found.batch * (k + 1) - 1) + 0.1 * k for k in cells]
        speeds = [found.batch * chains.tokens_per_step[k] / sec for k, sec in zip(cells, seconds, strict=True)]
        assert [each.value for each in found.tokens_per_sec] == pytest.approx(speeds)
        assert found.best == int(np.argmax(speeds)) and found.best in found.flat
        assert [each.value for each in found.speedup] == pytest.approx([speed / speeds[0] for speed in speeds])
        assert all(each.low <= each.value <= each.high for each in found.speedup)
        assert found.best_low <= found.best <= found.best_high
        assert found.share_of_best(2) == pytest.approx(speeds[2] / max(speeds))
    assert plan.batches[1].share_of_best(8) is None


def test_off_is_among_the_answers_and_the_batch_from_which_it_is_best_is_named():
    weak = geometric(0.35)
    plan = plan_server(weak, costs_of(profile(slope=0.15, draft=0.05)), [1, 2, 4])
    assert plan.best[1] > 0 and plan.best[4] == 0 and plan.off_from in (2, 4)


def test_the_sentence_tells_what_to_set_at_each_batch_size():
    wide = plan_server(geometric(0.7), costs_of(profile(slope=0.1)), [1, 8])
    assert re.sub(r", \d.\d\d to \d.\d\d", "", wide.sentence(4)) == (
        "Set K = 3 for one request at a time (1.58× the speed without; K = 4 now reaches 97% of the best), "
        "K = 1 for 8 at once (1.11× the speed without)."
    )
    assert "now reaches" not in plan_server(geometric(0.7), costs_of(profile(slope=0.1))).sentence(3)
    weak = plan_server(geometric(0.35), costs_of(profile(slope=0.15, draft=0.05)), [4]).sentence(0)
    assert weak == "Set no speculation for 4 at once. Turn it off from 4 at once on."


def test_off_means_off_at_every_larger_batch_size():
    one = plan_server(geometric(0.5), costs_of(profile(draft=0.3))).batches[0]
    rows = tuple(replace(one, batch=batch, best=best) for batch, best in ((1, 0), (2, 3), (4, 0), (8, 0)))
    assert ServerPlan(rows, (), "", ()).off_from == 4
    assert ServerPlan(rows[:2], (), "", ()).off_from is None


def test_batches_that_nothing_is_known_of_are_named(chains):
    plan = plan_server(chains, costs_of(profile()), [1, 64])
    assert plan.unknown == (64,) and list(plan.best) == [1]
    assert plan.notes[-1] == "Batch size 64: passes that large were not timed."
    with pytest.raises(ValueError, match="found no costs at batch size 64"):
        plan_server(chains, costs_of(profile()), [64])
    for batches in ([], [0], [1, MAX_BATCH + 1]):
        with pytest.raises(ValueError, match="batch: found .*, expected sizes from 1 to"):
            plan_server(chains, costs_of(profile()), batches)


def test_more_requests_settle_what_few_leave_open():
    few, many = (plan_server(geometric(0.6, drafts=drafts), costs_of(profile())).batches[0] for drafts in (60, 200_000))
    assert few.more > 50 and few.best_low < few.best_high
    assert many.more == 0 and many.best_low == many.best == many.best_high > 0


def test_what_would_help_names_its_gain():
    def fastest(share, draft):
        plan = plan_server(geometric(share), costs_of(profile(draft=draft))).batches[0]
        return plan.tokens_per_sec[plan.best].value

    helps = plan_server(geometric(0.6), costs_of(profile(draft=0.3))).batches[0].helps
    assert helps["half the refusals"] == pytest.approx(fastest(0.8, 0.3) / fastest(0.6, 0.3), rel=1e-3)
    assert helps["half the draft's time"] == pytest.approx(fastest(0.6, 0.15) / fastest(0.6, 0.3), rel=1e-3)


def test_steps_without_a_draft_cost_what_they_cost_without_speculation():
    ngram = chain_acceptance(read(vllm_text(*NGRAM)))
    plan = plan_server(ngram, costs_of(profile(), drafts_free=True)).batches[0]
    share = ngram.drafted_share
    seconds = share * (1 + 0.05 * 4) + (1 - share)
    assert plan.tokens_per_sec[4].value == pytest.approx(ngram.tokens_per_step[4] / seconds)
