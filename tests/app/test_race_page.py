"""The race page: real methods on a tiny pair, what the replay is told, a race that is stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest
from transformers import GenerationConfig

from sequoia_core.measuring import race as racing
from sequoia_core.measuring.race import MethodResult
from sequoia_core.models.threads import TimedLoad
from sequoia_core.trees.plain import branching_tree
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from tests.app.conftest import open_page, profile, run_job, settled, state_of, studio
from ui.jobs.jobs import Job, JobContext
from ui.markdown import escaped
from ui.race import entrants, finish, race_job, track
from ui.runs.run_files import run_from_bytes, run_to_bytes
from ui.runs.runs import DecodeRequest

METHODS = ["Autoregressive", "Best chain", "Planned tree", "SpecInfer", "SpecExec", "Lookup"]


def sent(page: AppTest) -> dict:
    return json.loads(page.get("bidi_component")[0].proto.json)


def test_greedy_methods_write_the_same_text_and_are_saved_as_runs(assets, tiny_pair) -> None:
    page = run_job(open_page("race", race_tokens="32"), "race")
    results = sorted(sent(page)["lanes"], key=lambda lane: METHODS.index(lane["name"]))
    assert all(
        result["tokens"][-1] == 32 and "".join(result["texts"]) == "".join(results[0]["texts"]) for result in results
    )
    assert all(
        result["ends"] == sorted(result["ends"]) and len(result["ends"]) == len(result["tokens"]) for result in results
    )
    assert len(results[0]["ends"]) == 32 > len(results[2]["ends"])
    assert "same text" in page.success[0].value
    found = studio(page).jobs["race"].result
    kept = studio(page).runs
    assert list(found.runs) == METHODS and {run["id"] for run in found.runs.values()} <= set(kept)
    alone = found.results[METHODS[0]].step_sec[0]
    assert all(found.runs[name]["baseline"]["seconds"] == alone for name in METHODS[1:])
    for name, run in found.runs.items():  # the record is of the first of three rounds
        assert found.results[name].tokens == [32] * 3 and len(set(found.results[name].step_sec)) > 1
        assert sum(sum(step["seconds"]) for step in run["steps"]) == pytest.approx(found.results[name].step_sec[0])


def test_the_winner_is_first_only_if_all_its_rounds_are(assets, tiny_pair) -> None:
    page = run_job(open_page("race", race_tokens="16"), "race")
    results = studio(page).jobs["race"].result.results
    for name, seconds in zip(METHODS, (2.0, 1.0, 0.5, 2.0, 4.0, 8.0), strict=True):
        results[name].step_sec = [seconds, 1.2 * seconds, 0.8 * seconds]
    page = settled(page.run())
    lanes, speeds = sent(page)["lanes"], page.dataframe[0].value.set_index("method")["×"].to_dict()
    assert speeds == {
        "Planned tree": "4.0× (3.3 to 5.0×)",
        "Best chain": "2.0× (1.7 to 2.5×)",
        "Autoregressive": "1.0× (0.83 to 1.2×)",
        "SpecInfer": "1.0× (0.83 to 1.2×)",
        "SpecExec": "2.0× slower (1.6 to 2.4×)",
        "Lookup": "4.0× slower (3.2 to 4.8×)",
    }
    assert [lane["slower"] for lane in lanes] == [False] * 4 + [True] * 2
    assert lanes[5]["figures"] == f"{speeds['Lookup']} · 2 tok/s"
    assert sent(page)["verdict"] == "First on this prompt: Planned tree"
    results["Best chain"].step_sec[2] = 0.6  # as long as the slowest round of the planned tree
    page = settled(page.run())
    assert sent(page)["verdict"] == "Level on this prompt: Planned tree, Best chain"
    results["Best chain"].step_sec = [2.0]  # the race was stopped
    page = settled(page.run())
    assert sent(page)["verdict"] == "Fastest in one round: Planned tree"


def test_a_race_on_a_busy_machine_is_marked(assets, tiny_pair, monkeypatch) -> None:
    busy = {"share": 0.6, "processes": 2}
    monkeypatch.setattr(TimedLoad, "record", lambda load: busy)
    page = run_job(open_page("race", race_tokens="16"), "race")
    assert page.warning[0].value.startswith("Two other processes used 60% of the machine")
    assert all(run["load"] == busy for run in studio(page).jobs["race"].result.runs.values())


def test_sampled_methods_write_different_texts_of_one_length(assets, tiny_pair, monkeypatch) -> None:
    monkeypatch.setattr(tiny_pair.target, "eos_ids", frozenset(range(0, 64, 2)))  # which would soon end every method
    ships = GenerationConfig(repetition_penalty=1.1, min_p=0.2)
    monkeypatch.setattr(tiny_pair.target.model, "generation_config", ships)
    page = run_job(open_page("race", race_tokens="16", temperature="0.7", seed="3"), "race")
    assert [result["tokens"][-1] for result in sent(page)["lanes"]] == [16] * 6
    found = studio(page).jobs["race"].result
    assert {name: run["verifier"] for name, run in found.runs.items()}["SpecInfer"] == "specinfer"
    assert not page.success and any("distribution" in element.value for element in page.markdown)
    captions = " ".join(element.value for element in page.caption)
    assert escaped("without the target's default min_p 0.2, repetition_penalty 1.1") in captions
    for run in found.runs.values():
        assert run_from_bytes(run_to_bytes(run), "a")["settings_left_out"] == ["min_p 0.2", "repetition_penalty 1.1"]


def test_greedy_methods_that_differ_are_named(assets, tiny_pair, monkeypatch) -> None:
    whole = racing.tree_method

    def odd(pair, tree, *arguments, **options):
        method = whole(pair, tree, *arguments, **options)

        def run(*request):
            found = method(*request)
            return replace(found, output=[*found.output[:-1], 0 if found.output[-1] else 1])

        return run if isinstance(tree, SpecExecTree) else method

    monkeypatch.setattr(racing, "tree_method", odd)
    page = run_job(open_page("race", race_tokens="16"), "race")
    said = page.warning[0].value
    assert "SpecExec did not" in said and not page.success
    assert "SpecExec: token 16 is" in said and "more than rounding" in said  # of 64 random logits the gap is large


@pytest.mark.parametrize(("stop", "finished"), [(0.2, {"one": [24]}), (0.8, {"one": [24] * 2, "two": [24] * 2})])
def test_a_stopped_race_retains_the_finished_rounds(stop, finished, tiny_pair) -> None:
    context = JobContext(Job("race"))
    request = DecodeRequest("def f():", branching_tree([2, 2]), max_new_tokens=24)
    context.progress = lambda fraction, message: context.cancel.set() if fraction > stop else None
    race = race_job.race_work({"one": request, "two": request})(context)
    assert {name: result.tokens for name, result in race.results.items()} == finished
    assert list(race.runs) == list(finished) and all(run["load"] is not None for run in race.runs.values())


def test_lanes_are_filled_in_the_running_order_and_tell_what_runs(monkeypatch) -> None:
    drawn, job = [], Job("race")
    monkeypatch.setattr(finish.session_jobs, "find_job", lambda name: job)
    monkeypatch.setattr(track, "_COMPONENT", lambda key, data: drawn.append(data))
    run = {"steps": [{"seconds": [0.1], "pieces": ["a"]}] * 2}
    for results, job.message in ({}, "warming up"), ({"one": MethodResult(step_sec=[0.2])}, "two, round 1 of 3"):
        job.result = race_job.Race(("one", "two"), results, dict.fromkeys(results, run))
        finish.draw_race(True)
    assert [(data["running"], data["verdict"]) for data in drawn] == [("", ""), ("two", "")]
    assert [[lane["ends"] for lane in data["lanes"]] for data in drawn] == [[[], []], [pytest.approx([0.1, 0.2]), []]]


def test_only_chosen_methods_run_and_foreign_plans_are_marked(assets, tiny_pair, monkeypatch) -> None:
    profile(device="another processor, 8 threads").save(assets / "profiles" / "cpu-2core.json")
    page = open_page("race", race_tokens="16")
    assert "measured with other settings" in state_of(page).value
    monkeypatch.setattr(entrants.tree_kinds, "make_policy", lambda *arguments: pytest.fail("planned a method left out"))
    page = settled(page.button_group(key="race_methods").set_value(["Chain", "SpecInfer"]).run())
    page = run_job(page, "race")
    chain = "Best chain"
    assert {lane["name"] for lane in sent(page)["lanes"]} == {"Autoregressive", chain, "SpecInfer"}
    assert any("race does not show how well a plan" in each.value for each in page.caption)
