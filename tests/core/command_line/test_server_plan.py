"""server-plan: from readings, records, saved matrices and costs to settings; without torch; bad input in one line."""

from functools import partial
from pathlib import Path

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.design.matrix_files import load_acceptance

ASSETS = Path(__file__).parents[3] / "assets"
PROFILE, VECTOR = ASSETS / "profiles" / "cpu-2core.json", ASSETS / "acceptance" / "demo-t0.json"
RATES = '{"format": "sequoia-acceptance", "version": 3, "matrix": [[0.8], [0.5], [0.3]], "meta": {"published": "x"}}'


@pytest.fixture
def plan(call):
    return partial(call, "server-plan")


@pytest.mark.slow
def test_a_profile_or_timed_settings_name_the_best_at_each_batch_size(plan, files):
    readings = ("--after", files("after"), "--before", files("before"))
    found = plan(*readings, "--profile", str(PROFILE), "--batch", "1,16")
    assert set(found["best"]) == {"1", "16"} and "vLLM 0.32" in next(iter(found["flags"]))
    assert found["batches"][0]["present_share_of_best"] <= 1
    assert plan(*readings, "--profile", str(PROFILE), "--acceptance", str(VECTOR))["tree_adds"] >= 1
    found = plan(*readings, "--timed", "0=400,2=600,4=640,0=900@4,1=1000@4,4=700@4", "--batch", "1,4")
    assert found["best"]["1"] == 4 and found["costs"] == "the server's own speed at 6 settings"
    assert found["batches"][0]["speedup"][4]["value"] == pytest.approx(640 / 400)
    assert found["best"]["4"] < 4
    assert plan(*readings, "--profile", files("bench"))["costs"].startswith("llama-bench")
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


def test_what_cannot_be_planned_from_says_why(plan, files, refusal, tmp_path):
    found = plan("--after", files("pmin"), "--profile", str(PROFILE))
    assert found["best"] is None and found["tokens_per_step"] is None and "56%" in found["warnings"][0]
    assert found["survival"] == pytest.approx([225 / 239, 124 / 239, 81 / 239, 64 / 239])  # as counted
    out = tmp_path / "matrix.json"
    assert "--out" in refusal("server-plan", "--after", files("pmin"), "--out", str(out)) and not out.exists()


def test_rates_by_position_say_how_they_are_read_and_can_be_said(plan, refusal, tmp_path):
    rates, matrix = tmp_path / "rates.csv", tmp_path / "rates.json"
    rates.write_text("0.8\n0.5\n0.3\n")
    found = plan("--after", str(rates))
    assert found["survival"] == [0.8, 0.5, 0.3] and found["acceptance"] == pytest.approx([0.8, 0.625, 0.6])
    assert "as survival" in found["warnings"][0] and "--rates conditional" in found["warnings"][0]
    assert plan("--after", str(rates), "--rates", "conditional")["survival"] == pytest.approx([0.8, 0.4, 0.12])
    matrix.write_text(RATES)
    found = plan("--after", str(matrix))
    assert found["survival"] == pytest.approx([0.8, 0.4, 0.12]) and "seldom halve" in found["warnings"][1]
    found = plan("--after", str(matrix), "--rates", "survival")
    assert found["survival"] == [0.8, 0.5, 0.3] and not any("halve" in warning for warning in found["warnings"])
    for text, said in (("0.5\n0.8\n", "expected --rates conditional"), ("0.5\n1.8\n", "outside 0 to 1")):
        rates.write_text(text)
        assert said in refusal("server-plan", "--after", str(rates))


def test_a_saved_matrix_is_planned_with_like_the_readings(plan, files, tmp_path):
    out = tmp_path / "matrix.json"
    readings = ("--after", files("after"), "--before", files("before"))
    first = plan(*readings, "--out", str(out), "--profile", str(PROFILE))
    again = plan("--after", str(out), "--profile", str(PROFILE))
    assert again["best"] == first["best"] and again["survival"] == pytest.approx(first["survival"])
    assert load_acceptance(out).meta["engine"] == "vllm"


@pytest.mark.slow
def test_a_measured_vector_is_carried_over_by_the_rule_of_engines(plan, refusal):
    greedy, sampled = (str(ASSETS / "acceptance" / f"{name}.json") for name in ("demo-t0", "demo-t0.6"))
    found = plan("--after", greedy, "--engine", "llama.cpp")
    assert (
        found["source"] == "a vector measured at temperature 0, as accepted by match" and len(found["survival"]) == 16
    )
    assert plan("--after", sampled, "--rule", "rejection")["source"].endswith("as accepted by rejection")
    counted = str(ASSETS / "servers" / "gemma-4-31b-dflash.json")
    assert "--rule: found 'match' for what a server" in refusal("server-plan", "--after", counted, "--rule", "match")


def test_steps_of_experts_grow_as_more_are_read(plan, files):
    """Between two timed settings a step follows the experts, which new tokens find ever fewer of: above the line."""
    options = ("--after", files("after"), "--before", files("before"), "--timed", "0=70,1=80,4=75")
    straight, bent = plan(*options), plan(*options, "--target-shape", "qwen3-30b-a3b")
    for k, same in ((1, True), (2, False), (3, False), (4, True)):
        speeds = [found["batches"][0]["tokens_per_sec"][k]["value"] for found in (straight, bent)]
        assert speeds[1] == pytest.approx(speeds[0]) if same else speeds[1] < 0.999 * speeds[0]
    dense = plan(*options, "--target-shape", "qwen3-8b")
    assert dense["batches"] == straight["batches"]


def test_for_people_there_is_a_sentence_and_lines_to_copy(files, capsys):
    assert main(["server-plan", "--after", files("after"), "--timed", "0=400,2=600,4=640"]) == 0
    shown = capsys.readouterr().out
    assert "Set K = 4 for one request at a time (1.60×" in shown
    assert "\n--speculative-config '{" in shown and '"num_speculative_tokens": 4' in shown
