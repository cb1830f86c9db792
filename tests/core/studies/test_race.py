from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core.decoding.growing.policies import AdaptiveTree
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import predicted_speedup
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.models.language_model import ModelPair
from sequoia_core.studies import bench as benchmark
from sequoia_core.studies import race as racing
from sequoia_core.studies.bench import bench
from sequoia_core.studies.race import Decoded, MethodResult, fastest_beyond_noise, over_best_other, race
from tests.conftest import calibration_of, linear_profile, pair_of

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, pytest.param(1e-300, marks=pytest.mark.slow)])
def test_all_methods_write_the_same_greedy_text(temperature, tiny_target, tiny_draft):
    """1e-300 is 0 in float32, and transformers divides by it."""
    pair, sampling = pair_of(tiny_target, tiny_draft), SamplingConfig(temperature)
    trees = {"chain": chain_tree(2), "tree": k_ary_tree(2, 2)}
    results = race(pair, [[1, 2, 3], [4, 5]], trees=trees, sampling=sampling, max_new_tokens=20)
    assert set(results) == {"autoregressive", "hf_generate", "hf_assisted", "chain", "tree"}
    for result in results.values():
        assert result.outputs == results["autoregressive"].outputs and result.tokens == [20, 20]
    assert results["hf_generate"].steps == results["autoregressive"].steps == [20, 20]


def test_a_head_is_no_assistant_and_no_reason_to_leave_the_target_out(tiny_target, tiny_head):
    """And dynamic trees that fall back on the root alone draft nothing."""
    trees = {"adaptive": AdaptiveTree(profile=linear_profile(9.0), calibration=calibration_of(0.01))}
    pair = pair_of(tiny_target, tiny_head)
    results = race(pair, [[1, 2, 3]], trees=trees, sampling=SamplingConfig(0.8), max_new_tokens=9)
    assert results["hf_assisted"].left_out == "transformers takes no draft head" and trees["adaptive"].fixed.size == 1
    assert results["hf_generate"].tokens == results["adaptive"].steps == [9] and not trees["adaptive"].needs_draft


@pytest.mark.slow
def test_bench_says_where_a_method_parts_from_the_greedy_text(tiny_target, tiny_draft, monkeypatch):
    whole = benchmark.race

    def odd(*arguments, **options):
        results = whole(*arguments, **options, with_transformers=False)
        results["chain"].outputs[1][4] = (results["chain"].outputs[1][4] + 1) % 64
        return results

    monkeypatch.setattr(benchmark, "race", odd)
    tokenizer = SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")
    options = {"sampling": SamplingConfig(), "max_new_tokens": 8, "calibration": [[6]]}
    result = bench(ModelPair(tiny_target, tiny_draft, tokenizer=tokenizer), [[1, 2, 3], [4, 5]], **options).record
    ((name, (found,)),) = result["texts_differ"].items()
    assert (name, found["prompt"], found["token"], found["near_tie"]) == ("chain", 2, 5, False)
    wrong, right = found["tokens"][1], found["tokens"][0]
    assert found["words"].startswith(f"token 5 is '<{wrong}>', not '<{right}>'; their logits differ by")
    assert abs(found["logit_gap"]) > 0.01 and "no near tie" in found["words"]


def method_result(seconds, tokens=10, steps=5, outputs=None, **phase_sec) -> MethodResult:
    """The result of a method whose every prompt took so many seconds."""
    outputs = outputs or [list(range(tokens))] * len(seconds)
    in_steps = [sec - 0.5 for sec in seconds]
    return MethodResult([tokens] * len(seconds), [steps] * len(seconds), list(seconds), outputs, in_steps, phase_sec)


def test_a_result_sums_up_tokens_over_time_and_steps():
    row = method_result([1.0, 2.0, 4.0], draft_sec=3.0, verify_sec=7.5).summary()
    assert row["tokens_per_sec"] == pytest.approx(30 / 7) and row["tokens_per_sec_quartiles"] == [3.75, 7.5]
    assert (row["tokens_per_step"], row["tokens"]) == (2.0, 30)
    assert row["phase_sec"] == {"draft_sec": 0.2, "verify_sec": 0.5}


def test_a_method_is_compared_with_the_fastest_other_prompt_by_prompt():
    results = {"slow": method_result([9.5] * 3), "fast": method_result([2.5, 4.5, 8.5])}
    results |= {"own": method_result([1.5, 2.5, 4.5]), "hf": MethodResult([10])}
    found = over_best_other(results, "own")
    assert found["lane"] == "fast" and found["value"] == pytest.approx((2 + 4 + 8) / (1 + 2 + 4))
    assert found["low"] == pytest.approx(2.0) and found["high"] == pytest.approx(2.0)  # twice on every prompt: no doubt
    results["own"] = method_result([2.5, 2.5, 2.5])
    unsure = over_best_other(results, "own")
    assert unsure["value"] == pytest.approx(14 / 6) and unsure["low"] < unsure["value"] < unsure["high"]
    assert over_best_other(results, "fast")["lane"] == "own"


@pytest.fixture
def scripted(monkeypatch):
    """A race in which nothing is decoded: runs take the seconds they are told, and say what they were called with."""
    now, calls = [0.0], []

    def steps(prompt, pair, *, max_new_tokens, generator, tree, **options):
        calls.append((tree.size, tuple(prompt), max_new_tokens, generator.initial_seed()))
        for done in range(2, max_new_tokens + 1, 2):
            now[0] += 0.5 if tree.size == 1 else 0.25
            phases = {"draft_sec": 1.0, "verify_sec": 2.0, "walk_sec": 3.0, "commit_sec": 4.0}
            yield SimpleNamespace(new_tokens=[1, 2], finished="length" if done == max_new_tokens else None, **phases)

    monkeypatch.setattr(racing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(racing, "decode", steps)
    return SimpleNamespace(calls=calls, now=now)


def test_methods_take_turns_after_a_warm_up_and_what_is_told_is_not_timed(scripted, tiny_target, tiny_draft):
    def slow(share, words):
        scripted.now[0] += 100.0
        told.append((share, words))

    told, prompts = [], [(1, 2, 3), (4,), (5, 6)]
    results = race(
        pair_of(tiny_target, tiny_draft), prompts, trees={"a": chain_tree(1), "b": chain_tree(2)},
        sampling=SamplingConfig(1.0), max_new_tokens=20, with_transformers=False, progress=slow,
    )  # fmt: skip
    assert told[0] == (0.0, "warming up") and told[-1] == (1.0, "a, prompt 3 of 3")
    sizes = [1, 2, 3]
    warm_up = [(size, prompts[0], 16, 0) for size in sizes]
    raced = [(sizes[(turn + place) % 3], prompt, 20, turn) for turn, prompt in enumerate(prompts) for place in range(3)]
    assert scripted.calls == warm_up + raced
    assert results["autoregressive"].seconds == [5.0] * 3 and results["a"].seconds == results["b"].seconds == [2.5] * 3
    assert results["a"].steps == [10] * 3 and results["a"].outputs == [[1, 2] * 10] * 3
    assert results["a"].phase_sec == {"draft_sec": 30.0, "verify_sec": 60.0, "walk_sec": 90.0, "commit_sec": 120.0}


def test_the_best_of_the_assisted_settings_is_reported(scripted, tiny_target, tiny_draft, monkeypatch):
    def method(pair, sampling, *, assisted, length_hint):
        seconds = {3: 0.5}.get(length_hint, 2.0)
        return lambda prompt, length, turn, report: Decoded([0] * length, length, seconds)

    monkeypatch.setattr(racing, "transformers_method", method)
    pair = pair_of(tiny_target, tiny_draft)
    results = race(pair, [[1], [2]], trees={}, sampling=SamplingConfig(), max_new_tokens=8)
    assert list(results) == ["autoregressive", "hf_generate", "hf_assisted"]
    assert results["hf_assisted"].seconds == [0.5, 0.5]


def test_bench_compares_what_it_raced_and_calibrates_on_the_rest(tiny_target, tiny_draft, monkeypatch):
    asked, looping = {}, [3] * 10

    def measured(prompts, pair, **options):
        asked["calibration"] = prompts
        return VECTOR

    def raced(pair, prompts, *, trees, **options):
        asked["raced"], asked["trees"] = prompts, trees
        outputs = [list(range(10)), looping, list(range(10))]
        seconds = {"autoregressive": [4.0, 4.0, 4.0], "chain": [2.0, 1.0, 8.0], "sequoia": [1.0, 2.0, 5.0]}
        return {name: method_result(taken, outputs=outputs) for name, taken in seconds.items()}

    monkeypatch.setattr(benchmark, "measure_acceptance", measured)
    monkeypatch.setattr(benchmark, "measure_profile", lambda pair, **options: PROFILE)
    monkeypatch.setattr(benchmark, "race", raced)
    pair = pair_of(tiny_target, tiny_draft)
    found = bench(pair, [[1], [2], [3], [4]], sampling=SamplingConfig(), max_new_tokens=10)
    result = found.record
    assert asked["raced"] == [[1], [2], [3]] and asked["calibration"] == [[4]]
    assert asked["trees"]["sequoia"] == plan_tree(VECTOR, PROFILE)
    assert result["measured_speedup"] == pytest.approx(10.5 / 6.5)  # totals of the steps, without prompt reading
    assert result["predicted_speedup"] == predicted_speedup(asked["trees"]["sequoia"], VECTOR, PROFILE)
    assert result["predicted_interval"] == [None, None] and result["held"] is None  # nothing is known of the samples
    assert found.over_plain["sequoia"].value == pytest.approx(10.5 / 6.5)
    assert result["fastest"] is None and result["same_as_plain"] == []  # three prompts that differ so prove nothing
    bench(pair, [[1], [2], [5]], sampling=SamplingConfig(), max_new_tokens=10, calibration=[[8], [9]])
    assert asked["raced"] == [[1], [2], [5]] and asked["calibration"] == [[8], [9]]
    assert result["repeated_4grams"] == [0.0, 0.857, 0.0]
    assert result["not_looping"]["prompts"] == 2 and result["looping"]["prompts"] == 1
    calm = {"autoregressive": 1.0, "chain": 0.8, "sequoia": pytest.approx(8 / 6)}
    assert result["not_looping"]["over_autoregressive"] == calm
    assert result["looping"]["over_autoregressive"] == {"autoregressive": 1.0, "chain": 4.0, "sequoia": 2.0}


def test_a_plan_without_a_draft_is_raced_once_as_plain_decoding(tiny_target, tiny_draft, monkeypatch):
    asked, vector = {}, AcceptanceVector([0.1, 0.05], calibration=calibration_of(0.2))

    def raced(pair, prompts, *, trees, **options):
        asked["trees"] = trees
        return {name: method_result([2.0, 3.0]) for name in ("autoregressive", *trees)}

    monkeypatch.setattr(benchmark, "measure_acceptance", lambda prompts, pair, **options: vector)
    monkeypatch.setattr(benchmark, "measure_profile", lambda pair, **options: linear_profile(2.0, 1.0))
    monkeypatch.setattr(benchmark, "race", raced)
    record = bench(
        pair_of(tiny_target, tiny_draft), [[1], [2], [3]], sampling=SamplingConfig(), max_new_tokens=10
    ).record
    assert record["tree"] == {"size": 1, "depth": 0} and record["same_as_plain"] == ["sequoia", "adaptive"]
    assert set(asked["trees"]) == {"chain", "specinfer"}  # SpecExec would have one node and a draft pass
    assert record["sequoia"]["measured_speedup"] == 1 and record["fastest"] is None


@pytest.mark.parametrize(
    ("chain", "tokens", "fastest"),
    [
        ([1.5, 1.6, 1.5, 1.4], 10, "chain"),
        ([3.9, 2.4, 4.0, 1.6], 10, None),  # ahead on the whole, by chance
        ([9.0, 9.1, 8.9, 9.0], 10, "autoregressive"),
    ],
)
def test_only_a_lead_beyond_the_noise_makes_a_method_the_fastest(chain, tokens, fastest):
    results = {"autoregressive": method_result([3.0, 3.1, 2.9, 3.0]), "chain": method_result(chain, tokens)}
    assert fastest_beyond_noise(results) == fastest
    results["hf_generate"] = MethodResult([10] * 4, [10] * 4, [0.1] * 4, [[1]] * 4)  # has no steps
    assert fastest_beyond_noise(results) == fastest
    results["chain"].seconds = [50.0] * 4  # reading the prompt took long: slower than plain on the whole
    assert fastest_beyond_noise(results) == (None if fastest == "chain" else fastest)
