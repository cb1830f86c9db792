"""server-plan: from readings, records, saved matrices and costs to settings; without torch; bad input in one line."""

from functools import partial
from pathlib import Path

import pytest

from sequoia_core.acceptance.matrix_files import load_acceptance
from tests.extras.servers.samples import SGLANG_TEXT

ASSETS = Path(__file__).parents[3] / "assets"
PROFILE = ASSETS / "profiles" / "cpu-2core.json"
RATES = '{"format": "sequoia-acceptance", "version": 3, "matrix": [[0.8], [0.5], [0.3]], "meta": {"published": "x"}}'


@pytest.fixture
def plan(call):
    return partial(call, "server-plan")


@pytest.mark.slow
def test_profiles_and_timed_settings_give_the_best_k(plan, files):
    readings = ("--after", files("after"), "--before", files("before"))
    found = plan(*readings, "--profile", str(PROFILE), "--batch", "1,16")
    assert set(found["best"]) == {"1", "16"} and "vLLM 0.32" in next(iter(found["flags"]))
    assert found["batches"][0]["present_share_of_best"] <= 1
    found = plan(*readings, "--timed", "0=400,2=600,4=640,0=900@4,1=1000@4,4=700@4", "--batch", "1,4")
    assert found["best"]["1"] == 4 and found["costs"] == "the server's measured speed at 6 settings"
    assert found["batches"][0]["speedup"][4]["value"] == pytest.approx(640 / 400)
    assert found["best"]["4"] < 4
    found = plan("--after", files("ngram"), "--profile", str(PROFILE))
    assert '"method": "ngram"' in next(iter(found["flags"].values()))


def test_each_context_has_a_plan(plan, files):
    readings = ("--after", files("after"), "--before", files("before"))
    loads = "0=400@1:500,2=600@1:500,4=640@1:500,0=100@1:16000,2=80@1:16000,4=75@1:16000"
    found = plan(*readings, "--timed", loads)
    assert [(row["context"], row["best"]) for row in found["by_context"]] == [(500, {"1": 4}), (16_000, {"1": 0})]
    assert plan(*readings, "--timed", loads, "--context", "16000")["best"] == {"1": 0}
    # a longer context makes passes dearer, of the target more than of the draft: the profile's own growth
    grown = str(PROFILE).replace("2core", "2core-bfloat16-avx512")
    near, far = (plan(*readings, "--profile", grown, "--context", at) for at in ("128", "4000"))
    rates = [each["batches"][0]["tokens_per_sec"][0]["value"] for each in (near, far)]
    assert rates[1] < 0.95 * rates[0] and near["by_context"][0]["context"] == 128


def test_without_times_the_best_k_is_a_range(plan, files, refusal):
    readings = ("--after", files("after"), "--before", files("before"))
    found = plan(*readings)
    assert found["costs"] == "a draft token is assumed to cost 2 to 20% of a target pass"
    assert found["cost_range"] == [0.02, 0.2] and found["batches"][0]["best_interval"] == [4, 4]
    tokens = found["tokens_per_step"][4]
    narrow = plan(*readings, "--draft-cost", "5")["batches"][0]["speedup"][4]
    assert narrow["value"] == pytest.approx(tokens / 1.2)
    wide = found["batches"][0]["speedup"][4]
    assert wide["low"] < tokens / 1.8 and wide["high"] > tokens / 1.08
    for cost in ("5-2", "x", "nan", "-1", "2-inf"):
        assert "--draft-cost" in refusal("server-plan", *readings, "--draft-cost", cost)
    assert "only one source" in refusal("server-plan", *readings, "--draft-cost", "5", "--profile", str(PROFILE))


def test_times_of_another_engine_give_a_range(plan, files):
    found = plan("--after", files("after"), "--profile", str(PROFILE))
    assert found["cost_range"] == [0.5, 2.0] and any("not the server's own times" in each for each in found["warnings"])
    best = found["batches"][0]["speedup"][found["best"]["1"]]
    assert best["high"] > 1.3 * best["low"]


def test_totals_are_planned_but_not_saved(plan, files, refusal, tmp_path):
    found = plan("--after", files("pmin"))
    assert 1 <= found["best"]["1"] <= 4 and found["fitted"] == pytest.approx(0.82, abs=0.02)
    assert any("many end early" in each for each in found["warnings"])
    out = tmp_path / "matrix.json"
    assert "--out" in refusal("server-plan", "--after", files("pmin"), "--out", str(out)) and not out.exists()


def test_averages_need_the_draft_length(plan, tmp_path):
    path = tmp_path / "after.prom"
    path.write_text(SGLANG_TEXT)
    found = plan("--after", str(path))
    assert found["best"] is None and found["warnings"][0].startswith("No plan can be made: found only averages")
    assert plan("--after", str(path), "--draft-length", "3")["batches"][0]["best_interval"] == [3, 3]


def test_the_type_of_rates_is_reported_and_can_be_chosen(plan, refusal, tmp_path):
    rates, matrix = tmp_path / "rates.csv", tmp_path / "rates.json"
    rates.write_text("0.8\n0.5\n0.3\n")
    found = plan("--after", str(rates))
    assert found["survival"] == [0.8, 0.5, 0.3] and found["acceptance"] == pytest.approx([0.8, 0.625, 0.6])
    assert "as survival" in found["warnings"][0] and "--rates conditional" in found["warnings"][0]
    assert plan("--after", str(rates), "--rates", "conditional")["survival"] == pytest.approx([0.8, 0.4, 0.12])
    matrix.write_text(RATES)
    found = plan("--after", str(matrix))
    assert found["survival"] == pytest.approx([0.8, 0.4, 0.12])
    found = plan("--after", str(matrix), "--rates", "survival")
    assert found["survival"] == [0.8, 0.5, 0.3]
    for text, said in (("0.5\n0.8\n", "use --rates conditional"), ("0.5\n1.8\n", "outside the range 0 to 1")):
        rates.write_text(text)
        assert said in refusal("server-plan", "--after", str(rates))


def test_a_saved_matrix_gives_the_same_plan(plan, files, tmp_path):
    out = tmp_path / "matrix.json"
    readings = ("--after", files("after"), "--before", files("before"))
    first = plan(*readings, "--out", str(out), "--profile", str(PROFILE))
    again = plan("--after", str(out), "--profile", str(PROFILE))
    assert again["best"] == first["best"] and again["survival"] == pytest.approx(first["survival"])
    assert load_acceptance(out).meta["engine"] == "vllm"


@pytest.mark.slow
def test_a_measured_vector_is_converted_by_the_acceptance_rule(plan, refusal):
    greedy, sampled = (str(ASSETS / "acceptance" / f"{name}.json") for name in ("demo-t0", "demo-t0.6"))
    found = plan("--after", greedy, "--engine", "llama.cpp")
    assert (
        found["source"] == "a vector measured at temperature 0, as accepted by match" and len(found["survival"]) == 16
    )
    assert plan("--after", sampled, "--rule", "rejection")["source"].endswith("as accepted by rejection")
    counted = str(ASSETS / "servers" / "gemma-4-31b-dflash.json")
    assert "--rule: found 'match' with a server's" in refusal("server-plan", "--after", counted, "--rule", "match")
