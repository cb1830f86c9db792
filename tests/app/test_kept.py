"""Results kept on this machine: their files, plans that links name, and sessions that are resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.trees.plain import chain_tree
from tests.app.conftest import OTHER_DRAFT, ROOT, open_page, profile, settled, studio, vector, wait_for
from tests.app.test_run_comparison import a_run
from ui.jobs import session_jobs
from ui.jobs.engine_queue import engine_queue
from ui.kept import store
from ui.runs import run_files
from ui.session import session
from ui.session.state import KEY, Chosen

pytestmark = pytest.mark.usefixtures("assets")
WRITER = """
import json, random, sys
from ui.kept import store
while True:
    content = json.dumps({"text": "x" * random.randrange(200_000)}).encode()
    print(store.keep("runs", content, name="kept"), len(content), flush=True)
"""


def test_results_are_listed_newest_first_renamed_and_deleted(kept_folder) -> None:
    first = store.keep("runs", b"{}", name="first", id="0" * 12)
    second = store.keep("vectors", b"[]", name="second", source="a file")
    assert [(each.kind, each.id, each.name, each.source, each.size) for each in store.entries()] == [
        ("vectors", second, "second", "a file", 2), ("runs", first, "first", "", 2),
    ]  # fmt: skip
    assert store.keep("vectors", b"[]", name="again") == second  # the same content has the same id
    store.rename("runs", first, "renamed")
    assert [each.name for each in store.entries("runs", "vectors")] == ["again", "renamed"]
    assert (kept_folder / "runs" / f"{first}.jsonl").read_bytes() == b"{}"
    store.delete("runs", first)
    assert not store.entries("runs") and not (kept_folder / "runs" / f"{first}.jsonl").exists()


def test_the_limit_deletes_the_oldest_and_zero_keeps_nothing() -> None:
    for number in range(4):
        store.keep("plans", b"%d" % number, name=str(number))
    store.set_limit(2)
    store.keep("plans", b"4", name="4")
    assert [each.name for each in store.entries()] == ["4", "3"]
    store.set_limit(0)
    store.keep("plans", b"5", name="5")
    assert [each.name for each in store.entries()] == ["4", "3"]


@pytest.mark.parametrize("damage", [b"", b"not a database" * 400])
def test_a_damaged_index_is_made_again_from_the_files(damage: bytes, kept_folder) -> None:
    kept = store.keep("runs", b"{}", name="a run")
    (kept_folder / "index.sqlite").write_bytes(damage)
    assert [(each.id, each.name) for each in store.entries()] == [(kept, f"{kept}.jsonl")]
    store.rename("runs", kept, "again")
    assert [each.name for each in store.entries()] == ["again"]


def test_a_folder_that_cannot_be_written_is_only_logged(kept_folder, caplog) -> None:
    kept_folder.parent.mkdir(parents=True)
    kept_folder.write_text("a file")
    assert len(store.keep("runs", b"{}", name="lost")) == 12
    assert store.entries() == [] and "was not kept" in caplog.text


@pytest.mark.parametrize("id", ["", "../settings", "0123456789AB", "0" * 13])
def test_only_ids_name_files(id: str) -> None:
    with pytest.raises(ValueError, match="expected 12 hexadecimal digits"):
        store.path_of("plans", id)


def test_two_processes_that_are_killed_while_writing_lose_no_earlier_file(full: bool) -> None:
    store.set_limit(10_000)
    written: dict[str, int] = {}
    for attempt in range(8 if full else 2):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        assert all(writer.stdout.readline() for writer in writers)
        time.sleep(0.04 * attempt)
        for writer in writers:
            writer.kill()
            lines = [line.split() for line in writer.communicate()[0].splitlines() if line.count(" ") == 1]
            written |= {id: int(length) for id, length in lines}
    kept = {each.id: each for each in store.entries("runs")}
    assert len(written) >= 4 and written.keys() <= kept.keys()
    for id, length in written.items():
        assert kept[id].size == length and kept[id].name == "kept"
    assert all(json.loads(each.path.read_bytes()) for each in kept.values())


def plan_of(page) -> str:
    """Return the id of the plan in a page's URL."""
    value = page.query_params["plan"]
    return value if isinstance(value, str) else value[0]


@pytest.mark.parametrize("changed", ["vector", "varied", "profile", "pair", "tree", "shape"])
def test_a_plan_opens_in_another_session(changed: str) -> None:
    first = open_page("tree")
    now = studio(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(st, "session_state", {KEY: now})
        if changed == "vector":
            session.set_acceptance(vector(0.5), "an upload", "mine.csv")
        elif changed == "varied":
            session.smooth_acceptance(replace(vector(0.45), meta={"edited": True}))
        elif changed == "profile":
            session.set_profile(replace(profile(0.9), device="some GPU"), "an upload", "gpu.json")
        elif changed == "pair":
            now.pair = replace(OTHER_DRAFT, dtype="float32")
        elif changed == "tree":
            now.tree = Chosen(chain_tree(3), "imported")
        else:
            now.shape = (9, 4)
    now.texts["decode_prompt"] = "mine"
    plan = plan_of(settled(first.run()))
    other = studio(open_page("tree", plan=plan))
    for name in ("pair", "shape", "tree", "profile", "acceptance", "original"):
        found, wanted = getattr(other, name), getattr(now, name)
        if isinstance(found, Chosen):
            assert found.source == wanted.source
            found, wanted = (each.value if name == "tree" else each.value.to_bytes() for each in (found, wanted))
        assert found == wanted
    assert other.texts == {"decode_prompt": "mine"}
    assert other.plan[0] == plan and list(other.own_vectors) == list(now.own_vectors)


def test_text_and_runs_do_not_make_other_plans() -> None:
    page = open_page("tree", {"shape": (9, 4)})
    plan = plan_of(page)
    studio(page).texts["decode_prompt"] = "mine"
    studio(page).last_run = a_run([["x"]])
    assert plan_of(settled(page.run())) == plan and len(store.entries("plans")) == 1
    assert studio(open_page("decode", plan=plan)).texts == {"decode_prompt": "mine"}


def test_a_plan_does_not_write_a_kept_vector_again() -> None:
    page = open_page("tree", {"acceptance": Chosen(vector(0.5), "mine")})
    first = store.entries("variants")
    studio(page).shape = (9, 4)
    settled(page.run())
    assert len(store.entries("plans")) == 2 and store.entries("variants") == first


@pytest.mark.parametrize("plan", ["0123456789ab", "../../etc/passwd", "damaged"])
def test_a_link_to_a_plan_that_cannot_be_read_says_so(plan: str, kept_folder) -> None:
    if plan == "damaged":
        plan = store.keep("plans", b'{"format": "sequoia-plan", "version": 1}', name="a plan")
    page = open_page("tree", plan=plan)
    assert "plan is not kept" in page.toast[0].value and studio(page).pair == PairSpec()
    assert "plan" not in page.query_params


def test_the_defaults_are_no_plan() -> None:
    page = open_page("decode")
    assert "plan" not in page.query_params and not store.entries()


def test_runs_of_earlier_sessions_are_listed_and_linked() -> None:
    run = a_run([["x"], ["y"]])
    store.keep("runs", run_files.run_to_bytes(run), name="decoded here", id=run["id"])
    store.keep("runs", b"damaged", name="damaged", id="f" * 12)
    page = open_page("decode", run=run["id"])
    assert not any("not kept" in each.value for each in page.warning) and studio(page).runs[run["id"]].run == run
    page = open_page("race", race_section="Runs")
    assert list(studio(page).runs) == [run["id"]]
    page = open_page("overview")
    assert any("decoded here" in each.value for each in page.caption)  # a link, with the router


def test_everything_that_is_kept_can_be_deleted() -> None:
    store.keep("runs", b"{}", name="a [run](link)", id="0" * 12)
    page = open_page("overview")
    settled(next(each for each in page.button if each.key == "kept_delete").click().run())
    assert not store.entries()
    next(each for each in page.selectbox if each.key == "kept_limit").select(0).run()
    assert store.limit() == 0


def test_a_recent_plan_is_used_by_its_button() -> None:
    first = open_page("tree", {"shape": (9, 4)})
    plan = plan_of(first)
    page = open_page("overview")
    assert studio(page).shape is None
    page = settled(next(each for each in page.button if each.key == f"recent_{plan}").click().run())
    assert studio(page).shape == (9, 4) and plan_of(page) == plan


@pytest.fixture
def left(monkeypatch):
    """The closed tabs, and a function that closes the tab of a page."""
    tabs: list = []
    monkeypatch.setattr(session_jobs, "_LEFT", tabs)

    def leave(page) -> session_jobs._Tab:
        tab = session_jobs._Tab("", studio(page))
        session_jobs._leave(tab)
        return tab

    return leave


def new_tab(**query: str) -> AppTest:
    page = AppTest.from_file(ROOT / "pages" / "tree.py", default_timeout=60)
    page.query_params |= query
    return settled(page.run())


def waiting_job():
    return engine_queue().submit("Waiting", lambda context: context.cancel.wait(30))


def test_a_reloaded_tab_gets_its_state_and_its_job_back(left) -> None:
    page = open_page("tree", {"jobs": {"measure": waiting_job()}, "texts": {"decode_prompt": "mine"}, "shape": (9, 4)})
    plan = plan_of(page)
    tab = left(page)
    assert studio(new_tab()) is not studio(page)  # with another plan
    again = new_tab(plan=plan)
    assert studio(again) is studio(page) and again.session_state["decode_prompt"] == "mine"
    session_jobs._forget(tab)  # two minutes later
    job = studio(again).jobs["measure"]
    assert job.active and not job.cancel_event.is_set()
    job.cancel()


def test_a_closed_tab_keeps_its_job_for_a_while(left, monkeypatch) -> None:
    monkeypatch.setattr(session_jobs, "OUTLIVES_SEC", 0.2)
    job = waiting_job()
    page = open_page("tree", {"jobs": {"measure": job}})
    left(page)
    assert not job.cancel_event.is_set()
    wait_for(lambda: not job.active)
    assert job.cancel_event.is_set() and studio(new_tab()) is not studio(page)
