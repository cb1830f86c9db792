"""Timing steps: models whose passes move a clock of their own, so that what is measured is known beforehand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sequoia_core import LookupTree
from sequoia_core.decoding import loop as engine
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.judging import CompiledJudge, RowJudge
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.models.installation import installation_id
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.native.threads import OtherLoad
from sequoia_core.studies.measure_profile import measure_profile
from sequoia_core.studies.step_timers import draft_pass_times
from tests.conftest import pair_of

OTHERS = 0.25  # cores that other processes keep busy


def test_measuring_refuses_what_the_models_cannot_hold(tiny_target, tiny_draft):
    for options, message in (
        ({"context": 256}, "context: found 256"),
        ({"sizes": [1, 100_000]}, "sizes: found 100,000, expected at most 4,096"),
        ({"repeats": 0}, "repeats: found 0"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_profile(pair_of(tiny_target, tiny_draft), **({"context": 8} | options))


class Pass(NamedTuple):
    """What one forward was asked for."""

    model: str
    count: int
    cached: int


class Bench:
    """Two models without weights and the clock that their passes move: what is measured is known beforehand.

    Attributes:
        seconds: (model, tokens, timed round from 0; -1 in the warm-up, context) -> what a pass takes. A target pass
            whose predecessor had another size takes `cold` seconds more.
        passes: all of them, in order.
        shares: what `measure` told of its progress.
        events: "pass", "wait" and "clock" in order.
    """

    def __init__(self, seconds, monkeypatch, cold=1000.0) -> None:
        self.seconds, self.cold, self.now, self.passes, self.events, self.round = seconds, cold, 0.0, [], [], -1
        monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=self.look))
        self.target, self.draft = ClockedModel("target", self), ClockedModel("draft", self)

    def look(self) -> float:
        self.events.append("clock")
        return self.now

    def measure(self, **options) -> HardwareProfile:
        self.shares: list[float] = []

        def next_round(share: float, words: str) -> None:
            self.round += share > 0.0  # at 0 it warms up
            self.shares.append(share)

        options = {"sizes": [2, 9, 33], "context": 6, "repeats": 3, "progress": next_round} | options
        return measure_profile(pair_of(self.target, self.draft), **options)

    @property
    def timed(self) -> list[Pass]:
        """All passes but those that filled the caches with the context."""
        return [made for made in self.passes if made.cached]


class ClockedSession(CacheSession):
    """Keeps track of lengths as any session does; its passes only move the clock."""

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
    vocab_size, max_context, device, dtype, offload, reads = 50, 64, "cpu", torch.float32, None, ()
    backend = "a clock"

    def __init__(self, name: str, bench: Bench) -> None:
        self.name, self.bench, self.last = name, bench, None

    def open(self, capacity: int, states=()) -> ClockedSession:
        return ClockedSession(self, capacity)


def cost(model: str, count: int, turn: int, cached: int) -> float:
    return (1.0 if model == "target" else 0.125) * (8 + count)


def test_times_are_medians_of_warm_passes_without_the_first_round(monkeypatch):
    def drifting(model, count, turn, cached):
        return {-1: 500.0, 0: 1.0, 1: 2.0, 2: 2.5}[turn] * count if model == "target" else 0.125 * (8 + count)

    found = Bench(drifting, monkeypatch).measure()
    assert found.sizes.tolist() == [1, 2, 9, 33] and found.context == 6
    assert found.verify_samples == tuple((n, 2.0 * n, 2.5 * n) for n in (1, 2, 9, 33))
    assert found.verify_sec.tolist() == [2.0, 4.0, 18.0, 66.0]
    assert found.draft_widths.tolist() == [1, 2, 8] and found.draft_sec == pytest.approx(1.125)
    np.testing.assert_allclose(found.draft_width_sec, [1.125, 1.25, 2.0])


@pytest.mark.slow
def test_a_device_is_waited_for_before_the_clock_is_read_after_passes(monkeypatch):
    bench = Bench(cost, monkeypatch)
    bench.measure(repeats=1)
    events = bench.events[bench.events.index("clock") :]  # the contexts have been read
    after = [event for event, following in pairwise(events) if following == "clock"]
    assert "pass" not in after and after.count("wait") > 20


def test_pass_times_are_found_from_what_whole_trees_took():
    levels = [[], [1], [1, 2, 2], [1, 4, 4, 4], [1, 8, 8], [1, 8, 16, 16], [1, 8, 24, 24]]

    def true_sec(width: int) -> float:  # with a kink at 8
        return 3.0 + 0.1 * width + max(0.0, 0.5 * (width - 8))

    seconds = np.array([sum(map(true_sec, tree)) for tree in levels])
    widths, found = draft_pass_times(levels, seconds)
    assert widths.tolist() == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose(found[:5], [true_sec(int(w)) for w in widths[:5]])
    assert true_sec(24) == pytest.approx(np.interp(24, widths, found))


@pytest.mark.slow
def test_what_a_longer_context_adds_is_told_apart(monkeypatch):
    def growing(model, count, turn, cached):
        return cost(model, count, turn, cached) + (0.5 if model == "target" else 0.25) * (cached - 6)

    bench = Bench(growing, monkeypatch, cold=0.0)
    found = bench.measure()
    np.testing.assert_allclose(found.verify_growth_sec, 0.5)
    assert found.draft_growth_sec == pytest.approx(0.25) and found.meta["further_context"] == 18
    assert found.verify_at(9, 26) == pytest.approx(17 + 10) and found.verify_at(9) == 17
    short = bench.measure(context=58)
    assert len(short.verify_growth_sec) == 0 and short.meta["further_context"] is None
    with pytest.raises(ValueError, match="context: found 59, expected 1 to 58 as the models and the trees allow"):
        bench.measure(context=59)  # trees of four levels would be cut


@pytest.mark.slow
def test_what_a_temperature_and_growing_add_is_told_apart(monkeypatch):
    bench = Bench(cost, monkeypatch, cold=0.0)
    for judge in (RowJudge, CompiledJudge):

        def slow_walk(self, draft, walk=judge.walk):
            bench.now += 0.5 if self.verifier.name == "greedy" else 3.5
            return walk(self, draft)

        monkeypatch.setattr(judge, "walk", slow_walk)

    def slow_growth(self, sequence, grow=GrowingDrafter.grow):
        bench.now += 0.25 if self.policy.calibration.temperature == 0 else 0.75
        return grow(self, sequence)

    monkeypatch.setattr(GrowingDrafter, "grow", slow_growth)
    found = bench.measure()
    np.testing.assert_allclose(found.overhead_sec, 0.5)
    np.testing.assert_allclose(found.sampling_sec, 3.0)
    np.testing.assert_allclose(found.growing_sec, [0.25, 0.75])
    again = bench.measure(repeats=6, resume=replace(found, growing_sec=[0.5, 0.25]))
    np.testing.assert_allclose(again.growing_sec, [0.375, 0.5])
    bench.passes.clear()
    bench.measure(sizes=[2, 5])
    assert max(made.count for made in bench.timed if made.model == "target") == 5  # the largest that was asked for


def test_rounds_of_an_earlier_profile_count(monkeypatch):
    monkeypatch.setattr(OtherLoad, "since_last_look", lambda self: OTHERS)
    bench = Bench(lambda model, count, turn, cached: float(count + turn), monkeypatch, cold=0.0)
    first = bench.measure(repeats=2)
    whole = bench.measure(repeats=5, resume=first)
    assert whole.meta["repeats"] == 5 and len(whole.verify_samples[0]) == len(whole.draft_samples[0]) == 5
    assert whole.verify_samples[0][:2] == first.verify_samples[0]
    np.testing.assert_allclose(whole.verify_sec, np.median(np.array(whole.verify_samples), axis=1))
    assert first.meta["installation"] == whole.meta["installation"] == installation_id()
    assert first.meta["load"] == whole.meta["load"] == OTHERS
    busier = replace(first, meta=first.meta | {"load": 1.5})
    assert bench.measure(repeats=5, resume=busier).meta["load"] == pytest.approx((2 * 1.5 + 3 * OTHERS) / 5, abs=0.01)
    foreign = replace(first, meta=first.meta | {"installation": "another"})
    assert bench.measure(repeats=5, resume=foreign).meta["installation"] is None
    with pytest.raises(ValueError, match="resume: found context 6, expected 7"):
        bench.measure(context=7, resume=first)


@pytest.mark.slow
def test_disturbed_rounds_are_timed_again_and_do_not_take_the_progress_back(monkeypatch):
    bench = Bench(lambda model, count, turn, cached: 50.0 if turn in (1, 2) else 1.0, monkeypatch, cold=0.0)
    found = bench.measure(repeats=5)
    assert found.meta["repeats"] == 5 and bench.round == 7  # the warm-up, five rounds and two more
    assert all(row == (1.0,) * 5 for row in found.verify_samples)
    assert bench.shares == sorted(bench.shares) and bench.shares[0] == 0.0 and bench.shares[-1] == 1.0


def test_a_target_without_a_draft_has_times_of_its_passes_alone(tiny_target):
    shown = []
    options = {"sizes": [2, 4], "context": 16, "repeats": 2}
    found = measure_profile(pair_of(tiny_target), **options, progress=lambda share, words: shown.append(words))
    assert found.sizes.tolist() == [1, 2, 4] and np.array(found.verify_samples).shape == (3, 2)
    assert found.meta["draft"] == "none" and found.context == 16 and "profiling, round 2 of 2" in shown
    again = HardwareProfile.loads(found.to_bytes(), "saved.json")
    assert LookupTree(TextIndex(), profile=again).max_size == 4
    with pytest.raises(ValueError, match="context: found 253, expected 1 to 252"):
        measure_profile(pair_of(tiny_target), **options | {"context": 253})
