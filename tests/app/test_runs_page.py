"""Saved runs: what is listed, opened, refused and compared."""

from streamlit.testing.v1 import AppTest

from tests.app.conftest import metrics, open_page, settled
from tests.app.test_run_comparison import a_run
from ui.runs.run_files import run_to_bytes
from ui.session.session import drafted_nodes


def opened(page: AppTest, content: bytes, name: str = "own.jsonl") -> AppTest:
    return settled(page.file_uploader(key="runs_file").upload(name, content).run())


def texts(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.success, *page.warning, *page.info])


def test_two_opened_runs_are_listed_and_compared(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"], ["b"]])))
    assert "to compare two" in texts(page) and len(page.dataframe[0].value) == 1
    page = opened(page, run_to_bytes(a_run([["a"], ["c"], ["d"]], temperature=0.6)), "other.jsonl")
    assert not page.error and len(page.dataframe[0].value) == 2
    assert "Both begin with the same **1** characters. The first parts in step 2. The second parts in step 2." in texts(
        page
    )
    assert metrics(page)["Steps"] == ("3", "second 2")  # what was opened last is first
    assert list(page.dataframe[1].value["setting"]) == ["Temperature"]


def test_a_file_that_is_no_run_is_refused_and_the_others_stay(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"]])))
    page = opened(page, b'{"format": "sequoia-run", "version": 2, "id": "<img src=x>"}', "![i](http://x).jsonl")
    assert "refused" in page.error[0].value and "id: found" in page.error[0].value
    assert "![i]" not in page.error[0].value and len(page.dataframe[0].value) == 1


def test_a_session_keeps_only_so_many_runs_and_nodes(assets, monkeypatch) -> None:
    nodes = drafted_nodes(a_run([["a"]]))
    for limit, most in (("MAX_RUNS", 2), ("MAX_NODES", 3 * nodes)):
        with monkeypatch.context() as patch:
            patch.setattr(f"ui.session.session.{limit}", most)
            page = open_page("race", race_section="Runs")
            for number in range(5):
                page = opened(page, run_to_bytes(a_run([["a"]])), f"{number}.jsonl")
        kept = ["4", "3"] if limit == "MAX_RUNS" else ["4", "3", "2"]
        assert [name[0] for name in page.dataframe[0].value["name"]] == kept


def test_a_run_is_renamed_and_deleted(assets) -> None:
    page = opened(open_page("race", race_section="Runs"), run_to_bytes(a_run([["a"]])))
    page = opened(page, run_to_bytes(a_run([["b"]])), "other.jsonl")
    first, second = page.session_state["studio_runs"]
    page = settled(page.text_input(key=f"runs_name_{first}").set_value("  *mine*  ").run())
    page = settled(page.button(key="runs_rename").click().run())
    assert list(page.dataframe[0].value["name"]) == ["*mine*", "own.jsonl"]
    page = settled(page.button(key="runs_delete").click().run())
    assert list(page.session_state["studio_runs"]) == [second] and "pair" not in page.dataframe[0].value
