"""Profiles of models whose passes advance a fake clock, so that the results are known."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sequoia_core.decoding import loop as engine
from sequoia_core.decoding.judging import RowJudge
from sequoia_core.files.extras import provided
from sequoia_core.files.faults import Cancelled
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.step_timers import draft_pass_times, pass_time_ratio
from sequoia_core.models.installation import installation_id
from sequoia_core.models.threads import TimedLoad
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.planning.profile import HardwareProfile
from tests.conftest import pair_of

OTHER_LOAD = {"share": 0.25, "processes": 1}


def test_settings_beyond_the_limits_are_refused(tiny_target, tiny_draft):
    for options, message in (
        ({"context": 256}, "context: found 256"),
        ({"sizes": [1, 100_000]}, "sizes: found 100,000, expected at most 4,096"),
        ({"repeats": 0}, "repeats: found 0"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_profile(pair_of(tiny_target, tiny_draft), **({"context": 8} | options))


class Pass(NamedTuple):
    """Arguments of a forward pass."""

    model: str
    count: int
    cached: int


class Bench:
    """Two models without weights, and the fake clock that their passes advance.

    Attributes:
        seconds: (model, tokens, round, context) -> seconds of a pass; the warm-up is round -1. A target pass after one
            of another size takes `cold` seconds more.
        passes: all passes in order.
        shares: the progress reported by `measure`.
        events: "pass", "wait" and "clock" in order.
    """

    def __init__(self, seconds, monkeypatch, cold=1000.0) -> None:
        self.seconds, self.cold, self.now, self.passes, self.events, self.round = seconds, cold, 0.0, [], [], -1
        monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=self.look))
        self.target = ClockedModel("target", self)
        self.draft = ClockedModel("draft", self)

    def look(self) -> float:
        self.events.append("clock")
        return self.now

    def measure(self, **options) -> HardwareProfile:
        self.shares: list[float] = []

        def next_round(share: float, words: str) -> None:
            if named := re.search(r"round (\d+)", words):  # not in the preparation and the warm-up
                self.round = int(named[1]) - 1
            self.shares.append(share)

        options = {"sizes": [2, 9, 33], "context": 6, "repeats": 3, "progress": next_round} | options
        return measure_profile(pair_of(self.target, self.draft), **options)

    @property
    def timed(self) -> list[Pass]:
        """All passes except those that read the context."""
        return [made for made in self.passes if made.cached]


class ClockedSession(CacheSession):
    """A session whose passes only advance the clock."""

    def __init__(self, model: ClockedModel, capacity: int) -> None:
        super().__init__(1, capacity, device=model.device, dtype=model.dtype, vocab_size=model.vocab_size)
        self.model = model

    def forward(self, ids, positions, tree_mask, *, keep):
        model, bench = self.model, self.model.bench
        made = Pass(model.name, len(ids), self.cache.length)
        self.cache.begin(positions)
        self.cache.end()
        if made.cached:
            bench.now += bench.seconds(*made[:2], bench.round, made.cached)
            bench.now += bench.cold if model.name == "target" and model.last != made.count else 0.0
            model.last = made.count
        bench.passes.append(made)
        bench.events.append("pass")
        return torch.zeros(keep, model.vocab_size)

    def wait(self) -> None:
        self.model.bench.events.append("wait")


class ClockedModel:
    vocab_size = 50
    max_context = 64
    device = "cpu"
    dtype = torch.float32
    offload = None
    state_indices = ()
    backend = "a clock"
    depths_per_pass = 1

    def __init__(self, name: str, bench: Bench) -> None:
        self.name, self.bench, self.last = name, bench, None

    def open(self, capacity: int, state_indices=()) -> ClockedSession:
        return ClockedSession(self, capacity)


def cost(model: str, count: int, turn: int, cached: int) -> float:
    return (1.0 if model == "target" else 0.125) * (8 + count)


def test_times_are_medians_without_the_warm_up_round(monkeypatch):
    def drifting(model, count, turn, cached):
        return {-1: 500.0, 0: 1.0, 1: 2.0, 2: 2.5}[turn] * count if model == "target" else 0.125 * (8 + count)

    found = Bench(drifting, monkeypatch).measure()
    assert found.sizes.tolist() == [1, 2, 9, 33] and found.context == 6
    assert found.verify_samples == tuple((n, 2.0 * n, 2.5 * n) for n in (1, 2, 9, 33))
    assert found.verify_sec.tolist() == [2.0, 4.0, 18.0, 66.0]
    assert found.draft_widths.tolist() == [1, 2, 8] and found.draft_sec == pytest.approx(1.125)
    np.testing.assert_allclose(found.draft_width_sec, [1.125, 1.25, 2.0])


@pytest.mark.slow
def test_the_device_is_synchronised_before_reading_the_clock(monkeypatch):
    bench = Bench(cost, monkeypatch)
    bench.measure(repeats=1)
    events = bench.events[bench.events.index("clock") :]  # after reading the contexts
    after = [event for event, following in pairwise(events) if following == "clock"]
    assert "pass" not in after and after.count("wait") > 20


def test_draft_pass_times_are_fitted_to_tree_times():
    levels = [[], [1], [1, 2, 2], [1, 4, 4, 4], [1, 8, 8], [1, 8, 16, 16], [1, 8, 24, 24]]

    def true_sec(width: int) -> float:  # with a kink at 8
        return 3.0 + 0.1 * width + max(0.0, 0.5 * (width - 8))

    seconds = np.array([sum(map(true_sec, tree)) for tree in levels])
    widths, found, _ = draft_pass_times(levels, seconds)
    assert widths.tolist() == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose(found[:5], [true_sec(int(w)) for w in widths[:5]])
    assert true_sec(24) == pytest.approx(np.interp(24, widths, found))


def test_drafting_all_depths_at_once_is_flat_in_depth(monkeypatch):
    def at_once(model, count, turn, cached):
        return cost(model, count, turn, cached) if model == "target" or cached == 6 else 0.01 * count

    monkeypatch.setattr(ClockedModel, "depths_per_pass", 7)
    found = Bench(at_once, monkeypatch).measure(sizes=[2, 4, 9, 33])
    assert found.draft_sec == pytest.approx(1.125) and found.deeper_draft_share == pytest.approx(0.01 / 1.125)
    for passes in ([1], [1, 1, 1, 1], [1, 8, 8, 8], [1, 2, 4]):
        assert found.drafting_at(np.array(passes)) == pytest.approx(1.125 + 0.01 * sum(passes[1:]))
    assert HardwareProfile.loads(found.to_bytes(), "profile.json").deeper_draft_share == found.deeper_draft_share


@pytest.mark.slow
def test_the_cost_of_a_longer_context_is_measured(monkeypatch):
    def growing(model, count, turn, cached):
        return cost(model, count, turn, cached) + (0.5 if model == "target" else 0.25) * (cached - 6)

    bench = Bench(growing, monkeypatch, cold=0.0)
    found = bench.measure()
    np.testing.assert_allclose(found.verify_growth_sec, 0.5)
    assert found.draft_growth_sec == pytest.approx(0.25) and found.meta["further_context"] == 18
    assert found.verify_at(9, 26) == pytest.approx(17 + 10) and found.verify_at(9) == 17
    short = bench.measure(context=58)
    assert len(short.verify_growth_sec) == 0 and short.meta["further_context"] is None
    with pytest.raises(ValueError, match="context: found 59, expected 1 to 58 for these models and trees"):
        bench.measure(context=59)  # trees of four levels would not fit


@pytest.mark.slow
def test_the_cost_of_sampling_is_measured(monkeypatch):
    bench = Bench(cost, monkeypatch, cold=0.0)
    for judge in (RowJudge, *provided("judges")):

        def slow_walk(self, draft, walk=judge.walk):
            bench.now += 0.5 if self.verifier.name == "greedy" else 3.5
            return walk(self, draft)

        monkeypatch.setattr(judge, "walk", slow_walk)

    found = bench.measure()
    np.testing.assert_allclose(found.overhead_sec, 0.5)
    np.testing.assert_allclose(found.sampling_sec, 3.0)


def test_rounds_of_a_resumed_profile_count(monkeypatch):
    monkeypatch.setattr(TimedLoad, "record", lambda self: OTHER_LOAD)
    bench = Bench(lambda model, count, turn, cached: float(count + turn), monkeypatch, cold=0.0)
    first = bench.measure(repeats=2)
    whole = bench.measure(repeats=5, resume=first)
    assert whole.meta["repeats"] == 5 and len(whole.verify_samples[0]) == len(whole.draft_samples[0]) == 5
    assert whole.verify_samples[0][:2] == first.verify_samples[0]
    np.testing.assert_allclose(whole.verify_sec, np.median(np.array(whole.verify_samples), axis=1))
    assert first.meta["installation"] == whole.meta["installation"] == installation_id()
    assert first.meta["load"] == whole.meta["load"] == OTHER_LOAD
    busier = {"share": 0.5, "processes": 2}
    disturbed = replace(first, meta=first.meta | {"load": busier})
    assert bench.measure(repeats=5, resume=disturbed).meta["load"] == busier
    foreign = replace(first, meta=first.meta | {"installation": "another"})
    assert bench.measure(repeats=5, resume=foreign).meta["installation"] is None
    with pytest.raises(ValueError, match="resume: found context 6, expected 7"):
        bench.measure(context=7, resume=first)


@pytest.mark.slow
def test_disturbed_rounds_are_repeated_and_progress_is_monotonic(monkeypatch):
    bench = Bench(lambda model, count, turn, cached: 50.0 if turn in (1, 2) else 1.0, monkeypatch, cold=0.0)
    found = bench.measure(repeats=5)
    assert found.meta["repeats"] == 5 and bench.round == 6  # five rounds and two repeated ones, from 0
    assert all(row == (1.0,) * 5 for row in found.verify_samples)
    assert bench.shares == sorted(bench.shares) and bench.shares[0] == 0.0 and bench.shares[-1] == 1.0


def test_only_target_passes_are_timed_without_a_draft(tiny_target):
    shown = []
    options = {"sizes": [2, 4], "context": 16, "repeats": 2}
    found = measure_profile(pair_of(tiny_target), **options, progress=lambda share, words: shown.append(words))
    assert found.sizes.tolist() == [1, 2, 4] and np.array(found.verify_samples).shape == (3, 2)
    assert found.meta["draft"] == "none" and found.context == 16 and "timing passes: round 2 of 2" in shown
    assert HardwareProfile.loads(found.to_bytes(), "saved.json").max_size == 4
    with pytest.raises(ValueError, match="context: found 253, expected 1 to 252"):
        measure_profile(pair_of(tiny_target), **options | {"context": 253})


def test_a_profile_is_checked_against_a_few_passes(tiny_target, tiny_draft):
    pair = pair_of(tiny_target, tiny_draft)
    profile = measure_profile(pair, sizes=(1, 8), context=16, repeats=3)
    as_measured = pass_time_ratio(pair, profile)
    five_times_faster = pass_time_ratio(pair, replace(profile, verify_sec=profile.verify_sec / 5))
    assert 0.2 < as_measured < 5 and 2 < five_times_faster / as_measured < 12.5
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        pass_time_ratio(pair, profile, cancel=cancel)
