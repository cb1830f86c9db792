import json
import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sequoia_core.design import profile as hardware
from sequoia_core.design.profile import PASSES, HardwareProfile, measure_profile
from sequoia_core.models.transformers_model import TreeCache


def profile(**changes):
    fields = {"sizes": [1, 4, 8], "verify_sec": [0.010, 0.009, 0.020], "draft_sec": 0.001} | changes
    return HardwareProfile(**fields)


def test_times_are_smoothed_to_never_decrease_and_interpolated():
    p = profile()
    assert p.smooth_verify_sec.tolist() == pytest.approx([0.0095, 0.0095, 0.020])
    assert p.t(np.array([1, 4, 6])).tolist() == pytest.approx([1.0, 1.0, (0.0095 + 0.020) / 2 / 0.0095])
    assert p.c == pytest.approx(0.001 / 0.0095) and p.max_size == 8


def test_draft_cost_uses_measured_widths():
    p = profile(draft_widths=[1, 4], draft_width_sec=[0.001, 0.002])
    assert p.draft_cost(2.5) == pytest.approx(0.0015 / 0.0095)
    assert profile().draft_cost(7) == pytest.approx(p.c)


@pytest.mark.parametrize("n", [0, 9])
def test_sizes_beyond_the_profile_are_refused(n):
    with pytest.raises(ValueError, match="expected 1 to 8"):
        profile().t(n)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verify_sec": [0.01, np.nan, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.0, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02]}, "2 times"),
        ({"sizes": [2, 4, 8]}, "sizes"),
        ({"sizes": [1, 8, 4]}, "sizes"),
        ({"sizes": [1], "verify_sec": [0.01]}, "sizes"),
        ({"draft_sec": 0.0}, "draft_sec"),
        ({"draft_sec": "fast"}, "draft_sec"),
        ({"draft_widths": [1, 2]}, "draft_width_sec"),
        ({"verify_sec": "abc"}, "verify_sec"),
        ({"sizes": [1, 4, 10**30]}, "sizes"),
        ({"sizes": [1, 4, 2**63]}, "sizes"),
        ({"sizes": [1, 4, 1_000_001]}, "sizes: .*at most 1,000,000"),
        ({"sizes": [1, 4.5, 8]}, "sizes: .*whole"),
        ({"sizes": [False, True]}, "sizes"),
        ({"verify_sec": [1e-320, 0.01, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02, 1e308]}, "verify_sec"),
        ({"sizes": [[1], [4], [8]]}, "sizes"),
        ({"verify_sec": [0.01, [0.02], 0.03]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02, 10**400]}, "verify_sec"),
        ({"draft_sec": True}, "draft_sec"),
        ({"draft_sec": 10**400}, "draft_sec"),
        ({"draft_widths": [1, 1], "draft_width_sec": [0.1, 0.1]}, "draft_widths: .*increasing"),
        ({"draft_widths": [4, 1], "draft_width_sec": [0.1, 0.1]}, "draft_widths: .*increasing"),
        ({"verify_samples": ((0.01,),)}, "verify_samples: found 1 rows, expected one for each of 3 sizes"),
        ({"verify_samples": ((0.01,), (-1.0,), (0.01,))}, "verify_samples"),
        ({"verify_samples": ((0.01,), (np.inf,), (0.01,))}, "verify_samples"),
        ({"context": -1}, "context: found -1"),
        ({"meta": [1]}, "meta: found list"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(changes, message):
    with pytest.raises(ValueError, match=message):
        profile(**changes)


def test_file_round_trip(tmp_path):
    path = tmp_path / "p.json"
    written = profile(
        draft_widths=[1, 4], draft_width_sec=[0.001, 0.002], verify_samples=((0.01,), (0.02,), (0.03,)), meta={"a": 1}
    )
    written.save(path)
    assert HardwareProfile.load(path).to_json() == written.to_json()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no readable JSON"),
        (b"[1]", "list"),
        (b'{"format": "sequoia-tree"}', "sequoia-tree"),
        (b'{"format": "sequoia-profile", "version": 9}', "version 9"),
        (b'{"format": "sequoia-profile", "version": 1, "sizes": [1, 2]}', "verify_sec: found nothing"),
        (b'{"format": "sequoia-profile", "version": 1, "sizes": 3, "verify_sec": [1], "draft_sec": 1}', "sizes"),
        (b"[" * 10_000, "nested too deep"),
        (b"\xff\xfe{", "not UTF-8"),
    ],
)
def test_broken_files_are_named(data, message, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        HardwareProfile.load(path)
    assert "broken.json" in str(error.value)


GOOD = {
    "format": "sequoia-profile", "version": 1, "sizes": [1, 4, 8], "verify_sec": [0.01, 0.01, 0.02], "draft_sec": 0.001,
    "device": "a GPU", "dtype": "float16", "context": 128, "draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002],
    "verify_samples": [[0.01], [0.01], [0.02]], "meta": {"target": "big"},
}  # fmt: skip
WRONG = (None, True, 3, 0.5, "x", [1], [[1]], ["x"], [None], {"a": 1}, [1, 4, 10**30], [1, 1e308, 1e309], -(10**40))


@pytest.mark.parametrize("field", GOOD)
def test_a_wrong_type_in_any_field_is_refused_by_name_or_means_what_it_says(field):
    HardwareProfile.loads(json.dumps(GOOD).encode(), "p.json")
    refused = 0
    for value in WRONG:
        if json.dumps(value) == json.dumps(GOOD[field]):
            continue
        data = json.dumps(GOOD | {field: value}).replace("Infinity", "1e309").encode()
        try:
            found = HardwareProfile.loads(data, "p.json").to_json()[field]
        except ValueError as error:
            refused += 1
            assert str(error).startswith("p.json: ") and "\n" not in str(error) and len(str(error)) < 250
        else:
            assert found == value and type(found) is type(GOOD[field])
    assert refused >= len(WRONG) - 2


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
    with pytest.raises(ValueError, match="cancelled"):
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
        monkeypatch.setattr(hardware, "time", SimpleNamespace(perf_counter=self.look))
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


class ClockedModel:
    vocab_size, max_context, device, dtype = 50, 64, "cpu", torch.float32

    def __init__(self, name: str, bench: Bench) -> None:
        self.name, self.bench, self.rounds = name, bench, {}

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(1, capacity)

    def forward(self, ids, positions, *, cache, tail, keep):
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
    monkeypatch.setattr(hardware, "describe_device", lambda device: f"some {device}")
    assert bench.measure(repeats=1).device == "some cuda"
    filled = ["pass"] * 6
    timed = ["pass", "wait for cuda", "clock", *["pass"] * PASSES, "wait for cuda", "clock"]
    assert bench.events == filled + timed * 6 * 2
