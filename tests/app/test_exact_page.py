"""The page "Is it exact?": recorded evidence, one's own, guarantees by hand, the check and the assumption."""

import csv
import io
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core import SamplingConfig
from sequoia_core.design.plain_trees import branching_tree
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.studies.verifier_comparison import TreeRun, VerifierComparison
from tests.app.conftest import ROOT, OpenPair, metrics, open_page, settled, vector, wait_for
from tests.conftest import calibration_of, tiny_llama
from ui import record_files
from ui.exact import measurements, wording
from ui.session import evidence, session
from ui.verifier_names import BESIDE

pytestmark = pytest.mark.usefixtures("assets")
CURVES = {"robustness_curves": "true"}
RECORDING = ROOT / "assets" / "runs" / "robustness.json"
HOSTILE = "<img src=x onerror=alert(1)>![](http://x)$$\x00"


def press(page, part: str):
    return settled(page.button(key=f"robustness_{part}_start").click().run())


def finish(page, part: str, state: str = "done"):
    job = page.session_state["studio_jobs"][f"robustness_{part}"]
    wait_for(lambda: not job.active, 60)
    assert job.state == state, job.error
    return settled(page.run())


@pytest.fixture
def recorded(assets):
    """The evidence that ships with the app."""
    (assets / "runs").mkdir()
    return shutil.copy(RECORDING, assets / "runs")


@pytest.fixture
def tiny_pair(monkeypatch: pytest.MonkeyPatch, tiny_target) -> SimpleNamespace:
    """A real pair of random models whose tokens read as markup."""
    tokenizer = SimpleNamespace(
        encode=lambda text: [1 + len(text) % 7, 3], decode=lambda ids, **_: "".join(f"{HOSTILE}{i}" for i in ids)
    )
    found = OpenPair(target=tiny_target, draft=tiny_llama(2, layers=1), tokenizer=tokenizer)
    monkeypatch.setattr("ui.jobs.jobs.shared_pair", lambda *spec: found)
    return found


def run(verifier: str, temperature: float, tokens: list[int], seconds: float = 1.0) -> TreeRun:
    m = len(tokens)
    return TreeRun(
        verifier, SamplingConfig(temperature), np.full(m, 10), np.array(tokens), np.array(tokens), np.full(m, seconds)
    )


def comparison() -> VerifierComparison:
    """Sequoia beats SpecInfer for sure and top-k not."""
    runs = (
        run("greedy", 0.0, [40, 42, 44]),
        run("sequoia", 1.0, [30, 31, 32]),
        run("specinfer", 1.0, [20, 21, 22]),
        run("topk", 1.0, [20, 31, 45]),
    )
    settings = {"target": "big", "draft": "small", "max_new_tokens": 16, "prompts": 3, "tree": [-1, 0, 0, 1]}
    return VerifierComparison(runs, settings)


def fake_study(*args, samplings, **options):
    rows = [
        {"verifier": name, "temperature": 1.0, "top_p": 1.0, "rank": k, "acceptance": 0.1, "rejection": 0.5 / k}
        | {"ci_low": None, "ci_high": None, "trials": 9}
        for name in ("sequoia", "specinfer", "topk")
        for k in (1, 2)
    ]
    return SimpleNamespace(rows=lambda: rows)


@pytest.mark.parametrize("section", ["Losslessness", "Verifiers", "Assumption"])
def test_each_section_shows_what_is_recorded_or_says_what_to_do(section: str, assets) -> None:
    (assets / "runs").mkdir()
    (assets / "runs" / "robustness.json").write_text("[" * 100_000)
    page = open_page("exact", robustness_section=section)
    assert "robustness.json: found" in page.warning[0].value and "Nothing measured yet" in page.info[0].value
    shutil.copy(RECORDING, assets / "runs")
    page = open_page("exact", robustness_section=section)
    charts = {"Losslessness": 1, "Verifiers": 1, "Assumption": 2}[section]
    assert len(page.get("plotly_chart")) == charts and "recorded on" in " ".join(m.value for m in page.markdown)


def test_recorded_evidence_is_there_at_once_and_says_so(recorded) -> None:
    page = open_page("exact", robustness_section="Verifiers")
    text = " ".join(element.value for element in page.markdown)
    held = evidence.load(recorded)["comparison"]
    assert "recorded on" in text and "on the demo pair, 32 prompts" in text
    here = next(row for row in held["runs"] if row["temperature"] == 1 and row["verifier"] == "sequoia")
    assert metrics(page)["Tokens per step"][0] == f"{here['tokens_per_step']:.2f}"
    won = sum(row["low"] > 1 for row in held["ratios"])
    assert metrics(page)["Won, over all settings"][0] == f"{won} of {len(held['ratios'])}"
    settled(page.selectbox(key="robustness_shown").set_value("T = 0").run())
    greedy = next(row for row in held["runs"] if row["temperature"] == 0)
    assert metrics(page)["Tokens per step"][0] == f"{greedy['tokens_per_step']:.2f}"


def test_a_comparison_says_where_sequoia_wins(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def compare(prompts, pair, *, progress, cancel, samplings, tree, **options):
        seen.update(prompts=prompts, samplings=samplings, tree=tree)
        return comparison()

    monkeypatch.setattr("sequoia_core.studies.verifier_comparison.compare_verifiers", compare)
    monkeypatch.setattr("sequoia_core.studies.rejection_curves.measure_rejection", fake_study)
    monkeypatch.setattr("sequoia_core.autoregressive", lambda *a, **o: [SimpleNamespace(new_tokens=[1, 2])])
    pair.target = SimpleNamespace(vocab_size=64)
    page = open_page("exact", robustness_section="Verifiers", robustness_temperatures=["0", "1"])
    page = finish(press(page, "comparison"), "comparison")
    assert [s.temperature for s in seen["samplings"]] == [0.0, 1.0] and len(seen["prompts"]) == 3
    text = "\n".join(element.value for element in page.markdown)
    assert "measured here on the demo pair, 3 prompts × 16 tokens" in text and "on-show" not in text
    spec = page.get("plotly_chart")[0].proto.spec
    assert "1.48\\u00d7 \\u25b2" in spec or "1.48× ▲" in spec
    assert metrics(page)["Won, over all settings"] == ("1 of 2", "1 level, 0 lost")


def test_cancelling_keeps_the_comparison_and_a_failure_keeps_it_too(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(prompts, pair, *, cancel, **options):
        assert cancel.wait(20)
        return comparison()

    pair.target = SimpleNamespace(vocab_size=64)
    monkeypatch.setattr("sequoia_core.studies.verifier_comparison.compare_verifiers", compare)
    page = press(open_page("exact", robustness_section="Verifiers"), "comparison")
    job = page.session_state["studio_jobs"]["robustness_comparison"]
    wait_for(lambda: job.state == "running")
    page.button(key="robustness_comparison_cancel").click().run()
    page = finish(page, "comparison", "cancelled")
    assert metrics(page)["Tokens per step"][0] == "3.10"

    def fail(*args, **options):
        raise ValueError("vocabulary: found 10 and 12, expected equal")

    monkeypatch.setattr("sequoia_core.studies.verifier_comparison.compare_verifiers", fail)
    page = finish(press(page, "comparison"), "comparison", "failed")
    assert "vocabulary: found 10 and 12" in page.error[0].value and metrics(page)["Tokens per step"][0] == "3.10"


@pytest.mark.slow
def test_other_trees_are_measured_beside_the_verifiers(tiny_pair, assets) -> None:
    """Hybrid trees only where a vector tells the draft's chances: at temperature 0."""
    replace(vector(), calibration=calibration_of(0.7)).save(assets / "acceptance" / "demo-t0.json")
    page = open_page("exact", robustness_section="Verifiers", robustness_temperatures=["0", "1"], **CURVES)
    page.select_slider(key="robustness_comparison_tokens").set_value(16)
    page = finish(press(page, "comparison"), "comparison")
    record = page.session_state["studio_evidence_comparison"]
    assert [(row["verifier"], row["temperature"]) for row in record["runs"]] == [
        ("greedy", 0.0), ("specinfer_tree", 0.0), ("lookup", 0.0), ("hybrid", 0.0),
        ("sequoia", 1.0), ("specinfer", 1.0), ("topk", 1.0), ("specinfer_tree", 1.0), ("lookup", 1.0),
    ]  # fmt: skip
    assert {(row["other"], row["temperature"]) for row in record["ratios"]} >= {("hybrid", 0.0), ("lookup", 1.0)}
    said = [each.value for each in page.caption if "Hybrid trees are missing" in each.value]
    assert len(said) == 1 and "missing at T = 1: no acceptance vector" in said[0] and "Lookup" not in said[0]


@pytest.mark.parametrize(
    ("section", "part", "key", "value", "said"),
    [
        ("Verifiers", "comparison", "temperatures", [], "at least one temperature"),
        ("Verifiers", "comparison", "comparison_own", "x" * 20_001, "characters, expected at most 20,000"),
        ("Assumption", "assumption", "assumption_prompts", 3, "prompts: found 3, expected at least 4"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(section: str, part: str, key: str, value, said: str) -> None:
    page = open_page("exact", robustness_section=section)
    widgets = [*page.get("button_group"), *page.slider, *page.text_area, *page.selectbox]
    next(each for each in widgets if each.key == f"robustness_{key}").set_value(value)
    page = press(page, part)
    assert said in page.error[0].value and "studio_jobs" not in page.session_state


def test_badges_and_worked_examples_are_those_of_the_core() -> None:
    page = open_page("exact", robustness_section="Guarantees")
    text = " ".join(element.value for element in page.markdown)
    assert text.count("No cover") == 1 and text.count("No optimal transport") == 1
    table = page.table[0].value
    assert table[["Sequoia", "SpecInfer", "Top-k"]].to_numpy().tolist() == [["1", "0.75", "1"], ["1", "1", "0.6"]]


BAD_ROWS = {  # what was typed -> what is said of it
    "1": "P: found 1 value",
    ".5, .6": "P: found a sum of 1.1, expected 1",
    "![](http://x), 1": "P: found ????http???x,",
    ".2, .3, .5": "rows: found 3 and 2 tokens",
}


def test_rows_of_ones_own_are_enumerated_or_named_and_never_rendered() -> None:
    page = open_page("exact", robustness_section="Guarantees", robustness_p="1, 0", robustness_q=".5,.5")
    assert metrics(page)["SpecInfer accepts"] == ("75.0%", "25.0 points below the best")
    assert metrics(page)["Sequoia accepts"] == ("100.0%", "the most of the three")
    for typed, said in BAD_ROWS.items():
        settled(page.text_input(key="robustness_p").set_value(typed).run())
        assert len(page.error) == 1 and said in page.error[0].value and "(http" not in page.error[0].value
    page.text_input(key="robustness_p").set_value("1, 0")
    settled(page.number_input(key="robustness_k").set_value(5).run())
    assert "k: found 5 children" in page.error[0].value


def test_a_real_check_shows_texts_literally(tiny_pair) -> None:
    page = open_page("exact", robustness_section="Losslessness", robustness_samples="200")
    page = finish(press(page, "losslessness"), "losslessness")
    shown = metrics(page)
    assert shown["Losslessness"] == ("Passed", "200 samples, Sequoia") and shown["p-value"][1] == "fails below 1e-07"
    record = page.session_state["studio_evidence_losslessness"]
    assert sum(cell["observed"] for cell in record["cells"]) + record["impossible"] == 200
    assert sum(cell["expected"] for cell in record["cells"]) == pytest.approx(200)
    spec = page.get("plotly_chart")[0].proto.spec
    assert "<img" not in spec and "&lt;img" in spec and "\u0000" not in spec  # escaped, control characters spelled out
    assert not any("<img" in element.value for element in [*page.markdown, *page.caption])


def test_a_check_of_trees_of_text_already_seen(tiny_pair) -> None:
    query = {"robustness_section": "Losslessness", "robustness_samples": "200"}
    query["robustness_losslessness_tree"] = BESIDE["lookup"]
    page = finish(press(open_page("exact", **query), "losslessness"), "losslessness")
    assert metrics(page)["Losslessness"] == ("Passed", "200 samples, Top-k")
    record = page.session_state["studio_evidence_losslessness"]
    assert record["settings"]["tree_source"] == "lookup trees no larger than branching 3 × 2"


def test_a_failed_check_says_so() -> None:
    record = {
        "settings": {"pair": "demo pair", "tree": [-1, 0], "tree_source": "t", "verifier": "topk", "new_tokens": 2}
        | {"prompt": HOSTILE, "temperature": 1.0, "top_p": 1.0},
        "samples": 10, "statistic": None, "degrees_of_freedom": 1, "p_value": 0.0, "threshold": 1e-7,
        "false_alarm": 1e-6, "impossible": 3, "passed": False,
        "cells": [{"text": "a", "tokens": [1], "pooled": False, "observed": 0, "expected": 10.0}
                  | {"expected_low": 0.0, "expected_high": 12.0}],
    }  # fmt: skip
    page = open_page("exact", robustness_section="Losslessness")
    page.session_state["studio_evidence_losslessness"] = record
    settled(page.run())
    assert metrics(page)["Losslessness"][0] == "Failed" and metrics(page)["Statistic G"][0] == "∞"
    assert "3 continuations have no probability" in page.error[0].value
    assert not any("<img" in element.value for element in page.markdown) and page.code[0].value == HOSTILE


@pytest.mark.slow
def test_a_real_assumption_test_draws_counts_and_gaps(tiny_pair) -> None:
    page = open_page("exact", robustness_section="Assumption", robustness_assumption_tree="use")
    page.text_area(key="robustness_assumption_own").set_value("one\ntwo two")
    page.select_slider(key="robustness_assumption_tokens").set_value(16)
    page = finish(press(page, "assumption"), "assumption")
    record = page.session_state["studio_evidence_assumption"]
    assert len(page.get("plotly_chart")) == 2 and record["settings"]["steps"] > 0
    assert sum(row["offered"] for row in record["confidence"]) > 0
    measured = next(row for row in record["estimates"] if row["quantity"] == "measured")
    assert metrics(page)["Measured, tokens per step"][0] == f"{measured['value']:.2f}"


def test_a_real_comparison_times_the_target_alone(tiny_pair) -> None:
    subject = measurements.Subject("demo pair", branching_tree([2, 2]), "test", ("a", "bb"), 16)
    record = measurements.record_now(measurements.compare_work(subject, [0.0, 1.0], [1.0]))
    assert [run["verifier"] for run in record["runs"]] == ["greedy", "sequoia", "specinfer", "topk"]
    assert all(run["speedup"] > 0 and run["timing_spread"] >= 1 for run in record["runs"])
    assert len(record["baseline"]) == 2 and len(record["rejection"]) == 4 * 16 + 4 + 16  # ranks of both optima
    again = json.loads(record_files.to_json("comparison", record))["comparison"]
    assert again == record  # what is downloaded is what was found, in plain JSON


def test_formulas_stay_text_in_a_file() -> None:
    rows = list(csv.DictReader(io.StringIO(record_files.to_csv([{"text": "=1+1", "n": -1.5}], {"prompt": "a\nb,c"}))))
    assert rows == [{"text": "'=1+1'", "n": "-1.5", "prompt": repr("a\nb,c")}]


def test_evidence_of_another_pair_is_marked(recorded) -> None:
    page = open_page("exact", robustness_section="Verifiers")
    page.session_state["studio_pair"] = PairSpec("owner/big", "owner/small")
    settled(page.run())
    assert session.pair_name() == "demo pair" and "pair big ← small" in page.warning[0].value


def test_dynamic_trees_are_shown_over_temperature_once_they_were_measured(assets) -> None:
    (assets / "runs").mkdir()
    rows = [
        {"temperature": t, "size": n, "tree": tree}
        | {"over_static": {"value": 1.0 + 0.1 * n / 16 - t, "low": 0.1, "high": 1.4}}
        for t in (0.0, 1.0) for n in (8, 16) for tree in ("static", "specexec", "adaptive, sampled")
    ]  # fmt: skip
    settings = {"date": "2026-11-22", "prompts_decoded": 16, "prompt_file": "some.jsonl", "dtype": "bfloat16"}
    path = assets / "runs" / "dynamic-budget.json"
    path.write_text(json.dumps({"budgets": rows, "settings": settings}))
    page = open_page("exact", robustness_section="Dynamic trees")
    assert any("With 16 nodes, specexec at T = 0 yields 1.10 times" in text.value for text in page.markdown)


def test_what_is_claimed_is_no_more_than_was_found() -> None:
    row = {"other": "topk", "temperature": 1.0, "top_p": 0.9, "value": 1.5, "low": 1.0, "high": 2.0}
    found = [wording.outcome(row | {"low": low, "high": high}) for low, high in ((1.0, 2.0), (1.01, 2), (0.2, 0.9))]
    assert found == ["ties", "wins", "loses"] and wording.outcome(row | {"low": None}) == "unknown"
    timed = {"speedup": 2.0, "timing_spread": 1.1, "tokens_per_sec": 80.0}
    assert "80 against 160 tokens/s" in wording.speed_sentence(timed | {"speedup": 0.5})
    assert "2.0-fold" in wording.speed_sentence(timed | {"timing_spread": 2.0})
    check = {"settings": {"new_tokens": 2}, "degrees_of_freedom": 0, "passed": True, "p_value": 1.0}
    assert "only one outcome" in wording.losslessness_sentence(check)
    assert "nothing here contradicts" in wording.losslessness_sentence(check | {"degrees_of_freedom": 3})
    assert "something is wrong" in wording.losslessness_sentence(check | {"passed": False, "p_value": 0.0})
