"""Timing passes: models whose passes move a clock of their own, so that what is measured is known beforehand."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from sequoia_core.design.profile import HardwareProfile
from sequoia_core.files.faults import Cancelled
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.studies import measure_profile as measuring
from sequoia_core.studies.measure_profile import PASSES, measure_profile


def test_measured_profile_has_every_time_and_its_samples(tiny_target, tiny_draft):
    told = []
    p = measure_profile(
        target=tiny_target, draft=tiny_draft, sizes=[2, 8], context=16, repeats=3, progress=lambda f, m: told.append(f)
    )
    assert p.sizes.tolist() == [1, 2, 8] and [len(row) for row in p.verify_samples] == [3, 3, 3]
    assert p.draft_widths.tolist() == [1, 2, 4, 8] and told[-1] == 1.0
    assert p.meta["target"] == "tiny-1" and p.dtype == "float32"


def test_measuring_refuses_what_the_models_cannot_hold(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="context: found 256"):
        measure_profile(target=tiny_target, draft=tiny_draft, context=256)
    with pytest.raises(ValueError, match="sizes"):
        measure_profile(target=tiny_target, draft=tiny_draft, sizes=[1], context=8)
    with pytest.raises(ValueError, match="sizes: found 100,000, expected at most 4,096"):
        measure_profile(target=tiny_target, draft=tiny_draft, sizes=[1, 100_000], context=8)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled, match="cancelled"):
        measure_profile(target=tiny_target, draft=tiny_draft, sizes=[2], context=8, cancel=stop)


class Pass(NamedTuple):
    """What one forward was asked for."""

    model: str
    count: int
    positions: list[int]
    cached: int
    tail: torch.Tensor
    keep: int


class Bench:
    """Two models without weights and the clock that their passes move: what is measured is known beforehand.

    Attributes:
        seconds: (model, tokens, timed round from 0; -1 in the warm-up) -> what a pass takes when the pass before it was
            of the same model and size; any other takes `cold` seconds more.
        passes: all of them, in order.
        events: "pass", "wait" and "clock" in order.
    """

    cold = 1000.0

    def __init__(self, seconds, monkeypatch) -> None:
        self.seconds, self.now, self.passes, self.events = seconds, 0.0, [], []
        monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=self.look))
        self.target, self.draft = ClockedModel("target", self), ClockedModel("draft", self)

    def look(self) -> float:
        self.events.append("clock")
        return self.now

    def measure(self, **options) -> HardwareProfile:
        return measure_profile(
            target=self.target, draft=self.draft, **({"sizes": [2, 4], "context": 6, "repeats": 3} | options)
        )

    @property
    def timed(self) -> list[Pass]:
        """All passes but those that filled the caches with the context."""
        return [made for made in self.passes if made.cached]

    @property
    def groups(self) -> list[list[Pass]]:
        """Passes of one model and size in a row."""
        found: list[list[Pass]] = []
        for made in self.timed:
            if not found or found[-1][0][:2] != made[:2]:
                found.append([])
            found[-1].append(made)
        return found


class ClockedSession(CacheSession):
    """Keeps track of lengths as any session does; its passes only move the clock."""

    def __init__(self, model: ClockedModel, capacity: int) -> None:
        super().__init__(1, capacity, device=model.device, dtype=model.dtype, vocab_size=model.vocab_size)
        self.model = model

    def append(self, ids, positions, tail, *, keep):
        return self.model.run(ids, positions, self.cache, tail, keep)


class ClockedModel:
    vocab_size, max_context, device, dtype = 50, 64, "cpu", torch.float32

    def __init__(self, name: str, bench: Bench) -> None:
        self.name, self.bench, self.rounds = name, bench, {}

    def open(self, capacity: int) -> ClockedSession:
        return ClockedSession(self, capacity)

    def run(self, ids, positions, cache, tail, keep):
        bench, made = self.bench, Pass(self.name, len(ids), positions.tolist(), cache.length, tail, keep)
        cache.begin(positions)
        cache.end()
        if made.cached:
            warm = bool(bench.passes) and bench.passes[-1].cached > 0 and bench.passes[-1][:2] == made[:2]
            if not warm:
                self.rounds[made.count] = self.rounds.get(made.count, -2) + 1
            bench.now += bench.seconds(self.name, made.count, self.rounds[made.count]) + (0.0 if warm else bench.cold)
        bench.passes.append(made)
        bench.events.append("pass")
        return torch.zeros(keep, self.vocab_size)


def cost(model: str, count: int, turn: int) -> float:
    return (1.0 if model == "target" else 0.125) * (8 + count)


def test_times_are_those_of_one_warm_pass(monkeypatch):
    found = Bench(cost, monkeypatch).measure()
    assert found.sizes.tolist() == [1, 2, 4] and found.verify_sec.tolist() == [9.0, 10.0, 12.0]
    assert found.draft_widths.tolist() == [1, 2, 4] and found.draft_width_sec.tolist() == [1.125, 1.25, 1.5]
    assert found.draft_sec == 1.125 and found.context == 6
    assert found.verify_samples == ((9.0,) * 3, (10.0,) * 3, (12.0,) * 3)


def test_the_first_round_is_thrown_away_and_the_median_of_the_others_kept(monkeypatch):
    def drifting(model, count, turn):
        return {-1: 500.0, 0: 1.0, 1: 2.0, 2: 9.0}[turn] * count

    found = Bench(drifting, monkeypatch).measure()
    assert found.verify_samples == ((1.0, 2.0, 9.0), (2.0, 4.0, 18.0), (4.0, 8.0, 36.0))
    assert found.verify_sec.tolist() == [2.0, 4.0, 8.0] and found.draft_sec == 2.0


def test_sizes_take_turns_and_each_time_is_of_several_passes_after_an_untimed_one(monkeypatch):
    bench = Bench(cost, monkeypatch)
    bench.measure(repeats=2)
    one_round = [("target", 1), ("target", 2), ("target", 4), ("draft", 1), ("draft", 2), ("draft", 4)]
    assert [group[0][:2] for group in bench.groups] == one_round * 3  # the warm-up and two repeats
    assert {len(group) for group in bench.groups} == {1 + PASSES}


def test_a_timed_pass_is_that_of_a_tree_on_top_of_the_context(monkeypatch):
    """Siblings right after the context, each seeing the context and itself, and logits of them all."""
    bench = Bench(cost, monkeypatch)
    bench.measure()
    for made in bench.timed:
        assert made.cached == 6 and made.positions == [6] * made.count and made.keep == made.count
        assert torch.equal(made.tail == 0, torch.eye(made.count, dtype=torch.bool)) and (made.tail <= 0).all()
    filled = [made for made in bench.passes if not made.cached]
    assert len(filled) == 6  # a cache for each model and size
    for made in filled:
        assert (made.count, made.positions) == (6, list(range(6)))
        assert torch.equal(made.tail == 0, torch.ones(6, 6, dtype=torch.bool).tril()) and (made.tail <= 0).all()


def test_a_device_is_waited_for_before_every_look_at_the_clock(monkeypatch):
    bench = Bench(cost, monkeypatch)
    bench.target.device = bench.draft.device = "cuda"
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: bench.events.append(f"wait for {device}"))
    monkeypatch.setattr(measuring, "describe_device", lambda device: f"some {device}")
    assert bench.measure(repeats=1).device == "some cuda"
    filled = ["pass"] * 6
    timed = ["pass", "wait for cuda", "clock", *["pass"] * PASSES, "wait for cuda", "clock"]
    assert bench.events == filled + timed * 6 * 2
