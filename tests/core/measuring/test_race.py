from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.measuring import bench as benchmark
from sequoia_core.measuring import race as racing
from sequoia_core.measuring.bench import bench
from sequoia_core.measuring.prompt_loop import take_turns
from sequoia_core.measuring.race import Decoded, MethodResult, clear_winner, compare_with_best_other, race
from sequoia_core.models.language_model import ModelPair
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import predicted_speedup
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from tests.conftest import pair_of

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, pytest.param(1e-300, marks=pytest.mark.slow)])
def test_all_methods_write_the_same_greedy_text(temperature, tiny_target, tiny_draft):
    """1e-300 is 0 in float32, by which transformers would divide."""
    pair = pair_of(tiny_target, tiny_draft)
    sampling = SamplingConfig(temperature)
    trees = {"chain": chain_tree(2), "tree": k_ary_tree(2, 2)}
    results = race(pair, [[1, 2, 3], [4, 5]], trees=trees, sampling=sampling, max_new_tokens=20)
    assert set(results) == {"autoregressive", "hf_generate", "hf_assisted", "chain", "tree"}
    for result in results.values():
        assert result.outputs == results["autoregressive"].outputs and result.tokens == [20, 20]
    assert results["hf_generate"].steps == results["autoregressive"].steps == [20, 20]


@pytest.mark.slow
def test_bench_reports_the_first_difference_of_texts(tiny_target, tiny_draft, monkeypatch):
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
    wrong = found["tokens"][1]
    right = found["tokens"][0]
    assert found["words"].startswith(f"token 5 is '<{wrong}>', not '<{right}>'; their logits differ by")
    assert abs(found["logit_gap"]) > 0.01 and "more than rounding" in found["words"]


def method_result(seconds, tokens=10, steps=5, outputs=None, **phase_sec) -> MethodResult:
    """Return a result with these seconds for each prompt."""
    outputs = outputs or [list(range(tokens))] * len(seconds)
    in_steps = [sec - 0.5 for sec in seconds]
    return MethodResult([tokens] * len(seconds), [steps] * len(seconds), list(seconds), outputs, in_steps, phase_sec)


def test_a_method_summary_has_rates_and_phases():
    row = method_result([1.0, 2.0, 4.0], draft_sec=3.0, verify_sec=7.5).summary()
    assert row["tokens_per_sec"] == pytest.approx(30 / 7) and row["tokens_per_sec_quartiles"] == [3.75, 7.5]
    assert (row["tokens_per_step"], row["tokens"]) == (2.0, 30)
    assert row["phase_sec"] == {"draft_sec": 0.2, "verify_sec": 0.5}


def test_a_method_is_compared_with_the_fastest_other():
    results = {"slow": method_result([9.5] * 3), "fast": method_result([2.5, 4.5, 8.5])}
    results |= {"own": method_result([1.5, 2.5, 4.5]), "hf": MethodResult([10])}
    found = compare_with_best_other(results, "own")
    assert found["lane"] == "fast" and found["value"] == pytest.approx((2 + 4 + 8) / (1 + 2 + 4))
    assert found["low"] == pytest.approx(2.0) and found["high"] == pytest.approx(2.0)  # twice as fast on every prompt
    results["own"] = method_result([2.5, 2.5, 2.5])
    unsure = compare_with_best_other(results, "own")
    assert unsure["value"] == pytest.approx(14 / 6) and unsure["low"] < unsure["value"] < unsure["high"]
    assert compare_with_best_other(results, "fast")["lane"] == "own"


@pytest.fixture
def scripted(monkeypatch):
    """Replace decoding by runs of known duration that record their arguments."""
    now = [0.0]
    calls = []

    def steps(prompt, pair, *, max_new_tokens, generator, tree, **options):
        calls.append((tree.size, tuple(prompt), max_new_tokens, generator.initial_seed()))
        for done in range(2, max_new_tokens + 1, 2):
            now[0] += 0.5 if tree.size == 1 else 0.25
            phases = {"draft_sec": 1.0, "verify_sec": 2.0, "walk_sec": 3.0, "commit_sec": 4.0}
            yield SimpleNamespace(new_tokens=[1, 2], finished="length" if done == max_new_tokens else None, **phases)

    monkeypatch.setattr(racing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(racing, "decode", steps)
    return SimpleNamespace(calls=calls, now=now)


def test_methods_take_turns_and_progress_is_not_timed(scripted, tiny_target, tiny_draft):
    def slow(share, words):
        scripted.now[0] += 100.0
        reported.append((share, words))

    reported = []
    prompts = [(1, 2, 3), (4,), (5, 6)]
    results = race(
        pair_of(tiny_target, tiny_draft), prompts, trees={"a": chain_tree(1), "b": chain_tree(2)},
        sampling=SamplingConfig(1.0), max_new_tokens=20, with_transformers=False, progress=slow,
    )  # fmt: skip
    assert reported[0] == (0.0, "warming up") and reported[-1] == (1.0, "a, prompt 3 of 3")
    sizes = [1, 2, 3]
    warm_up = [(size, prompts[0], 16, 0) for size in sizes]
    raced = [(sizes[(turn + place) % 3], prompt, 20, turn) for turn, prompt in enumerate(prompts) for place in range(3)]
    assert scripted.calls == warm_up + raced
    assert results["autoregressive"].seconds == [5.0] * 3 and results["a"].seconds == results["b"].seconds == [2.5] * 3
    assert results["a"].steps == [10] * 3 and results["a"].outputs == [[1, 2] * 10] * 3
    assert results["a"].phase_sec == {"draft_sec": 30.0, "verify_sec": 60.0, "walk_sec": 90.0, "commit_sec": 120.0}


def test_a_round_includes_all_methods_and_repeats_the_prompts_with_their_seeds():
    calls = []
    reported = []

    def method(name):
        def run(prompt, length, turn, report):
            calls.append((name, prompt, turn))
            return name

        return run

    methods = {name: method(name) for name in "ab"}
    turns = take_turns(methods, ["x", "y"], 9, rounds=2, progress=lambda share, words: reported.append(words))
    assert "".join(name for name, _ in turns) == "abba" * 2
    one_round = [("a", "x", 0), ("b", "x", 0), ("b", "y", 1), ("a", "y", 1)]
    assert calls == [("a", "x", 0), ("b", "x", 0), *one_round, *one_round]  # after the warm-up
    assert reported[-1] == "a, round 2 of 2, prompt 2 of 2"


def test_the_best_of_the_assisted_settings_is_reported(scripted, tiny_target, tiny_draft, monkeypatch):
    def method(pair, sampling, *, assisted, length_hint):
        seconds = {3: 0.5}.get(length_hint, 2.0)
        return lambda prompt, length, turn, report: Decoded([0] * length, length, seconds)

    monkeypatch.setattr(racing, "transformers_method", method)
    pair = pair_of(tiny_target, tiny_draft)
    results = race(pair, [[1], [2]], trees={}, sampling=SamplingConfig(), max_new_tokens=8)
    assert list(results) == ["autoregressive", "hf_generate", "hf_assisted"]
    assert results["hf_assisted"].seconds == [0.5, 0.5]


def test_bench_calibrates_on_prompts_that_do_not_race(tiny_target, tiny_draft, monkeypatch):
    asked = {}
    looping = [3] * 10

    def measured(prompts, pair, **options):
        asked["calibration"] = prompts
        return VECTOR

    def raced(pair, prompts, *, trees, **options):
        asked["raced"] = prompts
        asked["trees"] = trees
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
    assert result["measured_speedup"] == pytest.approx(10.5 / 6.5)  # time in steps only
    assert result["predicted_speedup"] == predicted_speedup(asked["trees"]["sequoia"], VECTOR, PROFILE)
    assert result["predicted_interval"] == [None, None] and result["held"] is None  # no samples
    assert found.over_plain["sequoia"].value == pytest.approx(10.5 / 6.5)
    assert 0.0 <= result["load"]["share"] <= 1.0 and result["load"]["processes"] >= 0
    assert result["fastest"] is None and result["same_as_plain"] == []  # too few prompts
    bench(pair, [[1], [2], [5]], sampling=SamplingConfig(), max_new_tokens=10, calibration=[[8], [9]])
    assert asked["raced"] == [[1], [2], [5]] and asked["calibration"] == [[8], [9]]
    assert result["repeated_4grams"] == [0.0, 0.857, 0.0]
    assert result["not_looping"]["prompts"] == 2 and result["looping"]["prompts"] == 1
    calm = {"autoregressive": 1.0, "chain": 0.8, "sequoia": pytest.approx(8 / 6)}
    assert result["not_looping"]["over_autoregressive"] == calm
    assert result["looping"]["over_autoregressive"] == {"autoregressive": 1.0, "chain": 4.0, "sequoia": 2.0}


@pytest.mark.parametrize(
    ("chain", "tokens", "fastest"),
    [
        ([1.5, 1.6, 1.5, 1.4], 10, "chain"),
        ([3.9, 2.4, 4.0, 1.6], 10, None),  # ahead in total, by chance
        ([9.0, 9.1, 8.9, 9.0], 10, "autoregressive"),
    ],
)
def test_the_winner_leads_beyond_the_noise(chain, tokens, fastest):
    results = {"autoregressive": method_result([3.0, 3.1, 2.9, 3.0]), "chain": method_result(chain, tokens)}
    assert clear_winner(results) == fastest
    results["hf_generate"] = MethodResult([10] * 4, [10] * 4, [0.1] * 4, [[1]] * 4)  # has no steps
    assert clear_winner(results) == fastest
    results["chain"].seconds = [50.0] * 4  # reading the prompt makes it slower in total
    assert clear_winner(results) == (None if fastest == "chain" else fastest)
