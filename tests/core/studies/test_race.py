from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import predicted_speedup
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.models.language_model import ModelPair
from sequoia_core.studies import race as benchmark
from sequoia_core.studies.race import Lane, bench, over_best_other, race

METHODS = ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia", "specexec", "adaptive")
VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


def test_all_methods_write_the_same_greedy_text(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    trees = {"chain": chain_tree(2), "tree": k_ary_tree(2, 2)}
    lanes = race(pair, [[1, 2, 3], [4, 5]], trees=trees, sampling=SamplingConfig(), max_new_tokens=20)
    assert set(lanes) == {"autoregressive", "hf_generate", "hf_assisted", "chain", "tree"}
    for lane in lanes.values():
        assert lane.outputs == lanes["autoregressive"].outputs and lane.tokens == [20, 20]
    assert lanes["hf_generate"].steps == lanes["autoregressive"].steps == [20, 20]


def test_sampled_methods_write_equally_much(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    lanes = race(pair, [[1, 2, 3]], trees={"tree": k_ary_tree(2, 2)}, sampling=SamplingConfig(0.8), max_new_tokens=16)
    assert all(lane.tokens == [16] for lane in lanes.values())


def test_hardly_any_temperature_writes_the_greedy_text_in_transformers_too(tiny_target, tiny_draft):
    """1e-300 is 0 in float32, and transformers divides by it."""
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    lanes = race(pair, [[1, 2, 3]], trees={}, sampling=SamplingConfig(1e-300), max_new_tokens=16)
    greedy = race(pair, [[1, 2, 3]], trees={}, sampling=SamplingConfig(), max_new_tokens=16, with_transformers=False)
    assert set(lanes) == {"autoregressive", "hf_generate", "hf_assisted"}
    assert all(lane.outputs == greedy["autoregressive"].outputs for lane in lanes.values())


def test_bench_record_is_complete(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    told = []
    result = bench(
        pair,
        [[1, 2, 3], [4, 5], [6]],
        sampling=SamplingConfig(),
        max_new_tokens=10,
        progress=lambda f, m: told.append(f),
    )
    assert result["settings"]["prompts"] == 2 and told[-1] == 1.0 and len(result["repeated_4grams"]) == 2
    assert result["measured_speedup"] > 0 and result["predicted_speedup"] >= 1.0
    for name in ("sequoia", "specexec", "adaptive"):
        row = result[name]
        assert row["measured_speedup"] > 0 and row["predicted_speedup"] > 0 and row["expected_tokens"] >= 1.0
    assert {key: result[key] for key in ("predicted_speedup", "measured_speedup", "held")}.items() <= (
        result["sequoia"].items()
    )
    assert len(result["growing_sec"]) == 2 and ("size" in result["adaptive"]) == (result["recipe"] == "static")
    assert result["not_looping"]["prompts"] + result["looping"]["prompts"] == 2 and result["peak_memory_bytes"] > 2**20
    measured = [result[kind]["over_autoregressive"] for kind in ("not_looping", "looping") if result[kind]["prompts"]]
    assert all(kind["autoregressive"] == 1.0 and set(kind) == set(METHODS) for kind in measured)


def lane(seconds, tokens=10, steps=5, outputs=None, **phase_sec) -> Lane:
    """A lane whose every prompt took so many seconds."""
    outputs = outputs or [list(range(tokens))] * len(seconds)
    in_steps = [sec - 0.5 for sec in seconds]
    return Lane([tokens] * len(seconds), [steps] * len(seconds), list(seconds), outputs, in_steps, phase_sec)


def test_a_lane_sums_up_tokens_over_time_and_steps():
    row = lane([1.0, 2.0, 4.0], draft_sec=3.0, verify_sec=7.5).summary()
    assert row["tokens_per_sec"] == pytest.approx(30 / 7) and row["tokens_per_sec_quartiles"] == [3.75, 7.5]
    assert (row["tokens_per_step"], row["tokens"]) == (2.0, 30)
    assert row["phase_sec"] == {"draft_sec": 0.2, "verify_sec": 0.5}


def test_a_lane_is_compared_with_the_fastest_other_prompt_by_prompt():
    lanes = {"slow": lane([9.5] * 3), "fast": lane([2.5, 4.5, 8.5]), "own": lane([1.5, 2.5, 4.5]), "hf": Lane([10])}
    found = over_best_other(lanes, "own")
    assert found["lane"] == "fast" and found["value"] == pytest.approx((2 + 4 + 8) / (1 + 2 + 4))
    assert found["low"] == pytest.approx(2.0) and found["high"] == pytest.approx(2.0)  # twice on every prompt: no doubt
    lanes["own"] = lane([2.5, 2.5, 2.5])
    unsure = over_best_other(lanes, "own")
    assert unsure["value"] == pytest.approx(14 / 6) and unsure["low"] < unsure["value"] < unsure["high"]
    assert over_best_other(lanes, "fast")["lane"] == "own"


@pytest.fixture
def scripted(monkeypatch):
    """A race in which nothing is decoded: runs take the seconds they are told, and say what they were called with."""
    now, calls = [0.0], []

    def decoder(name, seconds):
        def steps(prompt, *, max_new_tokens, generator, tree=None, **options):
            label = name if tree is None else f"{name} {tree.size}"
            calls.append((label, tuple(prompt), max_new_tokens, generator.initial_seed()))
            for _ in range(max_new_tokens // 2):
                now[0] += seconds
                yield SimpleNamespace(new_tokens=[1, 2], draft_sec=1.0, verify_sec=2.0, walk_sec=3.0, commit_sec=4.0)

        return steps

    monkeypatch.setattr(benchmark, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(benchmark, "autoregressive", decoder("plain", 0.5))
    monkeypatch.setattr(benchmark, "decode", decoder("tree", 0.25))
    return calls


def test_methods_take_turns_after_a_warm_up(scripted, tiny_target, tiny_draft):
    prompts = [(1, 2, 3), (4,), (5, 6)]
    lanes = race(
        ModelPair(tiny_target, tiny_draft, tokenizer=None), prompts, trees={"a": chain_tree(1), "b": chain_tree(2)},
        sampling=SamplingConfig(1.0), max_new_tokens=20, with_transformers=False, seed=7,
    )  # fmt: skip
    methods = ["plain", "tree 2", "tree 3"]
    warm_up = [(method, prompts[0], 16, 7) for method in methods]
    raced = [
        (methods[(turn + place) % 3], prompt, 20, 7 + turn) for turn, prompt in enumerate(prompts) for place in range(3)
    ]
    assert scripted == warm_up + raced
    assert lanes["autoregressive"].seconds == [5.0] * 3 and lanes["a"].seconds == lanes["b"].seconds == [2.5] * 3
    assert lanes["a"].steps == [10] * 3 and lanes["a"].outputs == [[1, 2] * 10] * 3
    assert lanes["a"].phase_sec == {"draft_sec": 30.0, "verify_sec": 60.0, "walk_sec": 90.0, "commit_sec": 120.0}


def test_the_best_of_the_assisted_settings_is_reported(scripted, tiny_target, tiny_draft, monkeypatch):
    def method(pair, sampling, *, assisted, length_hint):
        return lambda prompt, length, turn, lane: lane.add([0] * length, length, {3: 0.5}.get(length_hint, 2.0))

    monkeypatch.setattr(benchmark, "_transformers_method", method)
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    lanes = race(pair, [[1], [2]], trees={}, sampling=SamplingConfig(), max_new_tokens=8)
    assert list(lanes) == ["autoregressive", "hf_generate", "hf_assisted"]
    assert lanes["hf_assisted"].seconds == [0.5, 0.5]


def test_bench_compares_what_it_raced_and_calibrates_on_the_rest(tiny_target, tiny_draft, monkeypatch):
    asked, looping = {}, [3] * 10

    def measured(prompts, **options):
        asked["calibration"] = prompts
        return VECTOR

    def raced(pair, prompts, *, trees, **options):
        asked["raced"], asked["trees"] = prompts, trees
        outputs = [list(range(10)), looping, list(range(10))]
        seconds = {"autoregressive": [4.0, 4.0, 4.0], "chain": [2.0, 1.0, 8.0], "sequoia": [1.0, 2.0, 5.0]}
        return {name: lane(taken, outputs=outputs) for name, taken in seconds.items()}

    monkeypatch.setattr(benchmark, "measure_acceptance", measured)
    monkeypatch.setattr(benchmark, "measure_profile", lambda **options: PROFILE)
    monkeypatch.setattr(benchmark, "race", raced)
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    result = bench(pair, [[1], [2], [3], [4]], sampling=SamplingConfig(), max_new_tokens=10)
    assert asked["raced"] == [[1], [2], [3]] and asked["calibration"] == [[4]]
    assert asked["trees"]["sequoia"] == plan_tree(VECTOR, PROFILE)
    assert result["measured_speedup"] == pytest.approx(10.5 / 6.5)  # totals of the steps, without prompt reading
    assert result["predicted_speedup"] == predicted_speedup(asked["trees"]["sequoia"], VECTOR, PROFILE)
    assert result["predicted_interval"] == [None, None] and result["held"] is None  # nothing is known of the samples
    bench(pair, [[1], [2]], sampling=SamplingConfig(), max_new_tokens=10, calibration=[[8], [9]])
    assert asked["raced"] == [[1], [2]] and asked["calibration"] == [[8], [9]]
    assert result["repeated_4grams"] == [0.0, 0.857, 0.0]
    assert result["not_looping"]["prompts"] == 2 and result["looping"]["prompts"] == 1
    assert result["not_looping"]["over_autoregressive"] == {
        "autoregressive": 1.0,
        "chain": 0.8,
        "sequoia": pytest.approx(8 / 6),
    }
    assert result["looping"]["over_autoregressive"] == {"autoregressive": 1.0, "chain": 4.0, "sequoia": 2.0}
