"""The race page: real methods on a tiny pair, what the replay is told, a race that is stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest
from transformers import GenerationConfig

from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.design.plain_trees import branching_tree
from sequoia_core.studies import race as racing
from tests.app.conftest import metrics, open_page, profile, run_job, settled, state_of
from ui.jobs.jobs import Job, JobContext
from ui.markdown import escaped
from ui.race import entrants, race_job
from ui.race.track import LEVEL
from ui.runs.run_files import run_from_bytes, run_to_bytes
from ui.runs.runs import DecodeRequest

METHODS = ["Autoregressive", "Best chain", "Planned tree", "SpecInfer", "SpecExec", "Lookup"]


def sent(page: AppTest) -> dict:
    return json.loads(page.get("bidi_component")[0].proto.json)


def test_every_method_writes_the_same_text_at_temperature_0_and_is_kept_as_a_run(assets, tiny_pair) -> None:
    page = run_job(open_page("race", race_tokens="32"), "race")
    results = sent(page)["methods"]
    assert [result["name"] for result in results] == METHODS
    assert all(
        result["tokens"][-1] == 32 and "".join(result["texts"]) == "".join(results[0]["texts"]) for result in results
    )
    assert all(
        result["ends"] == sorted(result["ends"]) and len(result["ends"]) == len(result["tokens"]) for result in results
    )
    assert len(results[0]["ends"]) == 32 > len(results[2]["ends"])
    assert "same text" in page.success[0].value
    found = page.session_state["studio_jobs"]["race"].result
    kept = page.session_state["studio_runs"]
    assert list(found.runs) == METHODS and {run["id"] for run in found.runs.values()} <= set(kept)
    alone = sum(found.results[METHODS[0]].step_sec)
    assert all(found.runs[name]["baseline"]["seconds"] == alone for name in METHODS[1:])
    for name, run in found.runs.items():  # the record says what the race summed up
        assert sum(sum(step["seconds"]) for step in run["steps"]) == pytest.approx(sum(found.results[name].step_sec))

    results = found.results
    for name, seconds in zip(METHODS, (2.0, 1.0, 0.5, 2.0, 4.0, 8.0), strict=True):
        results[name].step_sec = [seconds]
    page = settled(page.run())
    assert metrics(page) == {
        "First on this prompt": ("Planned tree", "of 6 methods"),
        "Tokens per second": ("64", "autoregressive 16"),
        "Speedup": ("4.00×", "vs 1.00× autoregressive"),
        "Lead": ("500 ms", "before Best chain"),
    }
    table = page.dataframe[0].value.set_index("method")
    assert table["speedup"].round(6).to_dict() == dict(zip(METHODS, (1.0, 2.0, 4.0, 1.0, 0.5, 0.25), strict=True))
    results["Best chain"].step_sec = [0.5 * (1 + LEVEL)]
    level = metrics(settled(page.run()))
    assert level["Level on this prompt"] == ("2 methods", "Planned tree and Best chain") and "Lead" not in level


def test_above_temperature_0_methods_write_equally_much_but_not_the_same(assets, tiny_pair, monkeypatch) -> None:
    monkeypatch.setattr(tiny_pair.target, "eos_ids", frozenset(range(0, 64, 2)))  # which would soon end every method
    ships = GenerationConfig(repetition_penalty=1.1, min_p=0.2)
    monkeypatch.setattr(tiny_pair.target.model, "generation_config", ships)
    page = run_job(open_page("race", race_tokens="16", temperature="0.7", seed="3"), "race")
    assert [result["tokens"][-1] for result in sent(page)["methods"]] == [16] * 6
    found = page.session_state["studio_jobs"]["race"].result
    assert {name: run["verifier"] for name, run in found.runs.items()}["SpecInfer"] == "specinfer"
    assert not page.success and any("distribution" in element.value for element in page.markdown)
    captions = " ".join(element.value for element in page.caption)
    assert escaped("without the target's own min_p 0.2, repetition_penalty 1.1") in captions
    for run in found.runs.values():
        assert run_from_bytes(run_to_bytes(run), "a")["settings_left_out"] == ["min_p 0.2", "repetition_penalty 1.1"]


def test_methods_that_differ_at_temperature_0_are_named(assets, tiny_pair, monkeypatch) -> None:
    whole = racing.own_method

    def odd(pair, tree, *arguments, **options):
        method = whole(pair, tree, *arguments, **options)

        def run(*request):
            found = method(*request)
            return replace(found, output=[*found.output[:-1], 0 if found.output[-1] else 1])

        return run if isinstance(tree, SpecExecTree) else method

    monkeypatch.setattr(racing, "own_method", odd)
    page = run_job(open_page("race", race_tokens="16"), "race")
    said = page.warning[0].value
    assert "SpecExec did not" in said and not page.success
    assert "SpecExec: token 16 is" in said and "no near tie" in said  # of 64 random logits the gap is large


def test_a_race_that_is_stopped_keeps_the_methods_that_had_finished(tiny_pair) -> None:
    context = JobContext(Job("race"))
    request = DecodeRequest("def f():", branching_tree([2, 2]), max_new_tokens=24)
    context.progress = lambda fraction, message: context.cancel.set() if fraction > 0.7 else None
    race = race_job.race_work({"one": request, "two": request})(context)
    assert list(race.results) == list(race.runs) == ["one"] and race.results["one"].tokens == [24]


def test_only_the_chosen_methods_run_and_are_planned_if_elsewhere_it_says_so(assets, tiny_pair, monkeypatch) -> None:
    profile(device="another processor, 8 threads").save(assets / "profiles" / "cpu-2core.json")
    page = open_page("race", race_tokens="16")
    assert "another machine" in state_of(page).value
    monkeypatch.setattr(entrants.tree_kinds, "grown", lambda *arguments: pytest.fail("planned for a method left out"))
    page = settled(page.button_group(key="race_methods").set_value(["Chain", "SpecInfer"]).run())
    page = run_job(page, "race")
    chain = "Best chain, planned elsewhere"
    assert [result["name"] for result in sent(page)["methods"]] == ["Autoregressive", chain, "SpecInfer"]
    assert any("this race does not tell" in each.value for each in page.caption)
