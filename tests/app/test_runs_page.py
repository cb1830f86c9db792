"""The runs page: what is listed, opened, refused and compared."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.app.conftest import ROOT, metrics, open_page, settled
from tests.app.test_run_comparison import a_run
from ui.runs.run_files import run_to_bytes
from ui.session.session import MAX_RUNS, drafted_nodes


def opened(page: AppTest, content: bytes, name: str = "own.jsonl") -> AppTest:
    return settled(page.file_uploader(key="runs_file").upload(name, content).run())


def texts(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.success, *page.warning, *page.info])


def test_without_a_run_it_says_what_to_do(assets) -> None:
    assert "No run yet" in texts(open_page("runs"))


def test_two_opened_runs_are_listed_and_compared(assets) -> None:
    page = opened(open_page("runs"), run_to_bytes(a_run([["a"], ["b"]])))
    assert "to compare two" in texts(page) and len(page.dataframe[0].value) == 1
    page = opened(page, run_to_bytes(a_run([["a"], ["c"], ["d"]], temperature=0.6)), "other.jsonl")
    assert not page.error and len(page.dataframe[0].value) == 2
    assert "Both begin with the same **1** characters. The first parts in step 2. The second parts in step 2." in texts(
        page
    )
    assert metrics(page)["Steps"] == ("3", "second 2")  # what was opened last is first
    assert list(page.dataframe[1].value["setting"]) == ["Temperature"]
    page = settled(page.toggle(key="runs_only").set_value(False).run())
    assert len(page.dataframe[1].value) > 5 and len(page.dataframe[2].value) == 3
    known = list(page.session_state["studio_runs"])
    page = settled(page.selectbox(key="runs_second").set_value(known[0]).run())
    assert "Both wrote the same text." in texts(page)


def test_texts_of_different_prompts_are_not_compared(assets) -> None:
    page = open_page("runs")
    for prompt in ("p", "q"):
        page = opened(page, run_to_bytes(a_run([["a"]]) | {"prompt": prompt}), f"{prompt}.jsonl")
    assert "different prompts" in texts(page) and "Both wrote" not in texts(page)


def test_a_file_that_is_no_run_is_refused_and_the_others_stay(assets) -> None:
    page = opened(open_page("runs"), run_to_bytes(a_run([["a"]])))
    page = opened(page, b'{"format": "sequoia-run", "version": 2, "id": "<img src=x>"}', "![i](http://x).jsonl")
    assert "refused" in page.error[0].value and "id: found" in page.error[0].value
    assert "![i]" not in page.error[0].value and len(page.dataframe[0].value) == 1


def test_a_session_keeps_only_so_many(assets) -> None:
    page = open_page("runs")
    for number in range(MAX_RUNS + 2):
        page = opened(page, run_to_bytes(a_run([["a"]])), f"{number}.jsonl")
    assert len(page.dataframe[0].value) == MAX_RUNS
    assert page.dataframe[0].value["run"][0].startswith(f"{MAX_RUNS + 1}.jsonl")


def test_a_session_keeps_only_so_many_nodes(assets, monkeypatch) -> None:
    monkeypatch.setattr("ui.session.session.MAX_NODES", 2 * drafted_nodes(a_run([["a"]])))
    page = open_page("runs")
    for number in range(4):
        page = opened(page, run_to_bytes(a_run([["a"]])), f"{number}.jsonl")
    assert [name[0] for name in page.dataframe[0].value["run"]] == ["3", "2"]


def test_links_to_runs_that_are_not_there_fall_back() -> None:
    page = AppTest.from_file(str(ROOT / "pages" / "runs.py"), default_timeout=60)
    page.session_state["studio_runs"] = {run["id"]: run for run in (a_run([["a"]]), a_run([["b"]]))}
    page.session_state["studio_run_origins"] = {}
    page.query_params["runs_first"], page.query_params["runs_only"] = "../../etc/passwd", "x"
    page = settled(page.run())
    assert page.selectbox(key="runs_first").value == next(iter(page.session_state["studio_runs"]))
    assert page.toggle(key="runs_only").value is True


def test_the_list_names_the_pair_of_each_run_and_tells_runs_apart(assets) -> None:
    page, long = open_page("runs"), "a tree that has a very long name " * 3
    for draft in ("/models/small", "owner/large", "owner/large"):
        run = a_run([["a"]]) | {"target": "owner/big", "draft": draft, "tree_source": long}
        page = opened(page, run_to_bytes(run), f"{draft[-1]}.jsonl")
    shown = list(page.dataframe[0].value["run"])
    assert ["big ← large" in title for title in shown] == [True, True, False] and "big ← small" in shown[2]
    assert len(set(shown)) == 3
