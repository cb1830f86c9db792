"""The page "Is it exact?": recorded evidence, the losslessness check and the guarantees."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import ROOT, OpenPair, metrics, open_page, settled, studio, wait_for
from tests.conftest import tiny_llama
from ui.exact import measurements, wording
from ui.session import evidence, session
from ui.verifier_names import COMPARED_TREES

pytestmark = pytest.mark.usefixtures("assets")
RECORDING = ROOT / "assets" / "runs" / "robustness.json"
HOSTILE = "<img src=x onerror=alert(1)>![](http://x)$$\x00"


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
    pair = OpenPair(target=tiny_target, draft=tiny_llama(2, layers=1), tokenizer=tokenizer)
    monkeypatch.setattr("ui.jobs.jobs.shared_pair", lambda *spec: pair)
    return pair


def check(**query):
    """Run the losslessness check with 200 samples -> the page."""
    page = open_page("exact", robustness_section="Losslessness", robustness_samples="200", **query)
    settled(page.button(key="robustness_losslessness_start").click().run())
    job = studio(page).jobs["losslessness"]
    wait_for(lambda: not job.active, 60)
    assert job.state == "done", job.error
    return settled(page.run())


@pytest.mark.parametrize(("section", "picture"), [("Losslessness", "plotly_chart"), ("Verifiers", "dataframe")])
def test_each_section_shows_its_record_or_names_a_damaged_file(section: str, picture: str, assets) -> None:
    (assets / "runs").mkdir()
    (assets / "runs" / "robustness.json").write_text("[" * 100_000)
    page = open_page("exact", robustness_section=section)
    assert "robustness.json: found" in page.warning[0].value and page.info
    shutil.copy(RECORDING, assets / "runs")
    page = open_page("exact", robustness_section=section)
    assert page.get(picture)
    assert "recorded on" in " ".join(m.value for m in page.markdown)


def test_the_comparison_shows_the_recorded_figures(recorded) -> None:
    page = open_page("exact", robustness_section="Verifiers")
    record = evidence.load_evidence(recorded)["comparison"]
    won = sum(row["low"] > 1 for row in record["ratios"])
    assert f"**{won} of {len(record['ratios'])}**" in " ".join(each.value for each in page.markdown)
    outcomes, numbers = (table.value for table in page.dataframe)
    cells = [text for text in outcomes.drop(columns="Setting").to_numpy().ravel() if isinstance(text, str)]
    assert len(cells) == len(record["ratios"]) and sum(text.endswith("▲") for text in cells) == won
    ratio = next(row for row in record["ratios"] if row["temperature"] == 1 and row["other"] == "specinfer")
    shown = outcomes.set_index("Setting").loc["T = 1", "SpecInfer"]
    assert shown.startswith(f"{ratio['value']:.2f}×") and len(numbers) == len(record["runs"])


def test_records_of_another_pair_are_marked(recorded) -> None:
    page = open_page("exact", robustness_section="Verifiers")
    studio(page).pair = PairSpec("owner/big", "owner/small")
    settled(page.run())
    assert session.pair_name() == "demo pair" and "pair big ← small" in page.warning[0].value


def test_badges_and_worked_examples_match_the_verifiers() -> None:
    page = open_page("exact", robustness_section="Guarantees")
    text = " ".join(element.value for element in page.markdown)
    assert text.count("No cover") == 1 and text.count("No optimal transport") == 1
    assert [card.value for card in page.metric] == ["100.0%", "75.0%", "100.0%"]
    page = open_page(
        "exact", robustness_section="Guarantees", robustness_p=".6,.4", robustness_q=".6,.4", robustness_k="1"
    )
    assert [card.value for card in page.metric] == ["100.0%", "100.0%", "60.0%"]


BAD_ROWS = {  # typed text -> error
    "1": "P: found 1 value",
    ".5, .6": "P: found a sum of 1.1, expected 1",
    "![](http://x), 1": "P: found '\\!\\[\\](http",
    ".2, .3, .5": "rows: found 3 and 2 tokens",
}


def test_typed_rows_are_enumerated_or_refused_and_never_rendered() -> None:
    page = open_page("exact", robustness_section="Guarantees", robustness_p="1, 0", robustness_q=".5,.5")
    assert metrics(page)["SpecInfer accepts"] == ("75.0%", "25.0 points below the best")
    for typed, error in BAD_ROWS.items():
        settled(page.text_input(key="robustness_p").set_value(typed).run())
        assert len(page.error) == 1 and error in page.error[0].value and "[](" not in page.error[0].value
    page.text_input(key="robustness_p").set_value("1, 0")
    settled(page.number_input(key="robustness_k").set_value(5).run())
    assert "k: found 5 children" in page.error[0].value


def test_a_real_check_shows_texts_literally(tiny_pair) -> None:
    page = check()
    shown = metrics(page)
    assert shown["Losslessness"] == ("Passed", "200 samples, Sequoia") and shown["p-value"][1] == "fails below 1e-07"
    record = studio(page).evidence["losslessness"]
    assert sum(cell["observed"] for cell in record["cells"]) + record["impossible"] == 200
    assert sum(cell["expected"] for cell in record["cells"]) == pytest.approx(200)
    assert json.loads(evidence.to_json("losslessness", record))["losslessness"] == record
    spec = page.get("plotly_chart")[0].proto.spec
    assert "<img" not in spec and "&lt;img" in spec and "\u0000" not in spec
    assert not any("<img" in element.value for element in [*page.markdown, *page.caption])


@pytest.mark.parametrize("name", ["lookup", "hybrid"])
def test_lookup_trees_are_checked_and_uncalibrated_hybrid_trees_refused(name, tiny_pair) -> None:
    page = open_page("exact", robustness_section="Losslessness", robustness_losslessness_tree=COMPARED_TREES[name])
    if name == "hybrid":
        settled(page.button(key="robustness_losslessness_start").click().run())
        assert "hybrid trees need an acceptance vector with a calibration" in page.error[0].value
        return
    page = check(robustness_losslessness_tree=COMPARED_TREES[name])
    assert metrics(page)["Losslessness"] == ("Passed", "200 samples, Top-k")
    settings = studio(page).evidence["losslessness"]["settings"]
    assert settings["tree_source"] == "lookup trees no larger than branching 3 × 2"


def test_an_overlong_prompt_is_refused() -> None:
    page = open_page("exact", robustness_section="Losslessness")
    page.text_area(key="robustness_prompt").set_value("x" * 20_001)
    page = settled(page.button(key="robustness_losslessness_start").click().run())
    assert "characters, expected at most 20,000" in page.error[0].value and not studio(page).jobs


def test_a_failed_check_is_reported() -> None:
    cell = {"text": "a", "tokens": [1], "pooled": False, "observed": 0, "expected": 10.0}
    record = {
        "settings": {"pair": "demo pair", "tree": [-1, 0], "tree_source": "t", "verifier": "topk", "new_tokens": 2}
        | {"prompt": HOSTILE, "temperature": 1.0, "top_p": 1.0},
        "samples": 10,
        "statistic": None,
        "degrees_of_freedom": 1,
        "p_value": 0.0,
        "threshold": 1e-7,
        "false_alarm": 1e-6,
        "impossible": 3,
        "passed": False,
        "cells": [cell | {"expected_low": 0.0, "expected_high": 12.0}],
    }
    page = open_page("exact", robustness_section="Losslessness")
    studio(page).evidence["losslessness"] = record
    settled(page.run())
    assert metrics(page)["Losslessness"][0] == "Failed" and metrics(page)["Statistic G"][0] == "∞"
    assert "3 continuations have zero probability" in page.error[0].value
    assert not any("<img" in element.value for element in page.markdown) and page.code[0].value == HOSTILE


def test_claims_follow_the_intervals() -> None:
    row = {"other": "topk", "temperature": 1.0, "top_p": 0.9, "value": 1.5, "low": 1.0, "high": 2.0}
    results = [wording.outcome(row | {"low": low, "high": high}) for low, high in ((1.0, 2.0), (1.01, 2), (0.2, 0.9))]
    assert results == ["ties", "wins", "loses"] and wording.outcome(row | {"low": None}) == "ties"
    record = {"settings": {"new_tokens": 2}, "degrees_of_freedom": 0, "passed": True, "p_value": 1.0}
    assert "only one outcome" in wording.losslessness_sentence(record)
    assert "nothing here contradicts" in wording.losslessness_sentence(record | {"degrees_of_freedom": 3})
    assert "something is wrong" in wording.losslessness_sentence(record | {"passed": False, "p_value": 0.0})


def test_bounds_cover_about_95_percent_of_counts():
    """With 4,000 draws of each count, coverage off by more than 2 points would be a false alarm below 1e-6."""
    share = np.array([0.1, 0.3, 0.6])
    drawn = np.random.default_rng(0).multinomial(1000, share, size=4000)
    low, high = measurements.count_bounds(1000 * share, 1000)
    inside = ((low <= drawn) & (drawn <= high)).mean(0)
    assert np.abs(inside - 0.95).max() < 0.02
    assert measurements.count_bounds(np.array([0.0, 1000.0]), 1000)[0].tolist() == [0.0, 1000.0]
