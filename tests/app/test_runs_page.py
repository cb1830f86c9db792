"""Saved runs: listing, opening, rejection and comparison."""

import json
import math

from streamlit.testing.v1 import AppTest

from tests.app.conftest import open_page, settled, studio
from tests.app.test_run_comparison import a_run
from ui.runs.run_comparison import SHADES
from ui.runs.run_files import run_to_bytes


def opened(page: AppTest, content: bytes, name: str = "own.jsonl") -> AppTest:
    return settled(page.file_uploader(key="runs_file").upload(name, content).run())


def texts(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.success, *page.warning, *page.info])


def test_two_opened_runs_are_listed_and_compared(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"], ["b"]])))
    assert "to compare two" in texts(page) and len(page.dataframe[0].value) == 1
    page = opened(page, run_to_bytes(a_run([["a"], ["c"], ["d"]], temperature=0.6)), "other.jsonl")
    assert not page.error and len(page.dataframe[0].value) == 2
    assert "The texts are the same for 1 character. They part in step 2 of both." in texts(page)
    assert page.dataframe[0].value[["run", "steps"]].values.tolist() == [["A", 3], ["B", 2]]
    assert [run["total"] for run in json.loads(page.get("bidi_component")[0].proto.json)["runs"]] == [3, 2]
    assert page.dataframe[1].value.to_dict("records") == [{"setting": "Temperature", "A": "0.6", "B": "0.0"}]
    for table in page.dataframe:
        assert all(shade in table.proto.arrow_data.styler.styles for shade in SHADES.values())


def test_a_run_with_an_infinite_speedup_is_listed(assets) -> None:
    run = a_run([["a"]]) | {"baseline": {"tokens": 1, "seconds": 1.0}}
    run["steps"][0]["seconds"] = [5e-324, 0.0, 0.0, 0.0]
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(run))
    assert not page.exception and page.dataframe[0].value["×"].tolist() == [math.inf]


def test_an_invalid_run_is_rejected_and_the_others_stay(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"]])))
    page = opened(page, b'{"format": "sequoia-run", "version": 2, "id": "<img src=x>"}', "![i](http://x).jsonl")
    assert "was not opened" in page.error[0].value and "id: found" in page.error[0].value
    assert "![i]" not in page.error[0].value and len(page.dataframe[0].value) == 1


def test_a_run_is_renamed_and_deleted(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"]])))
    page = opened(page, run_to_bytes(a_run([["b"]])), "other.jsonl")
    first, second = studio(page).runs
    page = settled(page.text_input(key=f"runs_name_{first}").set_value("  *mine*  ").run())
    page = settled(page.button(key="runs_rename").click().run())
    assert list(page.dataframe[0].value["name"]) == ["*mine*", "own.jsonl"]
    page = settled(page.button(key="runs_delete").click().run())
    assert list(studio(page).runs) == [second]
