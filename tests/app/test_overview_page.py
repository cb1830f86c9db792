"""The first page: the whole chain with a real engine, its film and a failure."""

from __future__ import annotations

import json
import re
import threading

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.measuring.measure_acceptance import vector_from_prompts
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import prompts_for
from sequoia_core.trees.optimal import expected_tokens
from tests.app.conftest import ROOT, newest, open_page, settled, studio, wait_for
from ui.overview import chain_job
from ui.overview.film import Film
from ui.session import shipped


@pytest.fixture
def tiny_chain(monkeypatch: pytest.MonkeyPatch, tiny_pair) -> None:
    """A chain of a second or so."""
    monkeypatch.setattr(chain_job, "PROMPT_TOKENS", 8)
    monkeypatch.setattr(chain_job, "NEW_TOKENS", 16)
    monkeypatch.setattr(chain_job, "SIZES", (1, 2, 4))


def run_chain(page: AppTest) -> AppTest:
    page = settled(page.button(key="chain_start").click().run())
    wait_for(lambda: not studio(page).jobs["chain"].active)
    return settled(page.run())


@pytest.mark.slow
def test_the_whole_chain_updates_the_other_pages(assets, tiny_chain) -> None:
    page = run_chain(open_page("overview"))
    assert not page.error
    found = studio(page).jobs["chain"].result
    film = json.loads(page.get("bidi_component")[0].proto.json)["film"]
    assert film["over"] == "done" and film["sizes"] == [1, 2, 4]
    assert [frame["at"] for frame in film["frames"]] == sorted(frame["at"] for frame in film["frames"])
    prompts = [frame["prompts"] for frame in film["frames"] if "probs" in frame]
    assert prompts == list(range(1, len(found.acceptance.prompt_trials) + 1))
    last = film["frames"][-1]
    assert last["last"] and film["shapes"][-1]["parents"] == found.tree.parents.tolist()
    assert sum(last["chance"]) == pytest.approx(expected_tokens(found.tree, found.acceptance))
    passes = [frame["sec"] for frame in film["frames"] if frame.get("nodes") == 4]
    assert set(found.profile.verify_samples[2]) <= set(passes)
    shown = " ".join(each.value for each in page.markdown)
    assert re.search(r"[\d.]+× measured\*\* over .*, 16 tokens\. [\d.]+×.* predicted", shown)
    session = studio(page)
    assert all("measured here" in newest(page, kind).source for kind in ("vectors", "profiles"))
    assert session.last_run["baseline"]["tokens"] == 16
    assert newest(page, "profiles").value.max_size == 4
    assert found.profile.meta["load"] == found.runs[0]["load"] == {"share": 0.0, "processes": 0} and not page.warning
    found.profile.meta["load"] = {"share": 0.5, "processes": 1}
    assert settled(page.run()).warning[0].value.startswith("Another process used 50% of the machine")
    found.runs[0]["load"] = {"share": 0.7, "processes": 3}
    assert settled(page.run()).warning[0].value.startswith("Three other processes used 70% of the machine")


@pytest.mark.slow
def test_measuring_continues_after_the_chain(assets, tiny_chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_job, "MEASURE_SEC", 1e-9)
    monkeypatch.setattr(shipped, "prompts", lambda: [f"DEF F{number}(A):" for number in range(12)])
    page = run_chain(open_page("overview"))
    first = newest(page, "vectors").value
    assert len(first.prompt_trials) == chain_job.LEAST_PROMPTS
    assert "4 prompts left" in page.button(key="chain_go_on").label  # of 12, the last four are decoded
    page = settled(page.button(key="chain_go_on").click().run())
    job = studio(page).jobs["measure"]
    wait_for(lambda: not job.active)
    page = settled(page.run())
    assert job.state == "done", job.error
    whole = newest(page, "vectors").value
    assert len(whole.prompt_trials) == 8 and (whole.prompt_sums[:4] == first.prompt_sums).all()
    assert all(button.key != "chain_go_on" for button in page.button)


@pytest.mark.slow
def test_measuring_ends_when_the_plan_is_settled() -> None:
    vector = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-large-t0.json")
    profile = HardwareProfile.load(ROOT / "assets" / "profiles" / "cpu-2core-bfloat16-avx512.json")

    def of_first(prompts: int) -> AcceptanceVector:
        kept = vector.prompt_sums[:prompts], vector.prompt_trials[:prompts]
        return vector_from_prompts(*kept, meta={}, holds_for=vector.holds_for, ranks=vector.prompt_ranks[:prompts])

    stop = chain_job._StopRule(profile, threading.Event(), lambda share, words: None, Film())
    done = 0
    while not stop.reached.is_set():
        done += 1
        stop.count(of_first(done))
    tree = plan_tree(of_first(done), profile)
    assert done < len(vector.prompt_trials) and prompts_for(tree, of_first(done), within=chain_job.WITHIN) <= done
    assert not any(prompts_for(tree, of_first(m), within=chain_job.WITHIN) <= m for m in range(8, done, 4))
    whole = plan_tree(vector, profile)
    assert (tree.size, tree.depth) == (whole.size, whole.depth)


def test_the_chain_measures_and_decodes_different_prompts(assets, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        chain_job, "chain_work", lambda *prompts, **pair: given.extend(sum(prompts, [])) or (lambda context: None)
    )
    open_page("overview").button(key="chain_start").click().run()
    assert len(given) >= 2 and len(set(given)) == len(given)


@pytest.mark.slow
def test_a_failed_chain_says_why_and_retains_its_results(assets, tiny_chain, monkeypatch: pytest.MonkeyPatch) -> None:
    import sequoia_core

    def dies(*given, **options):
        raise RuntimeError("the engine was killed")

    monkeypatch.setitem(vars(sequoia_core), "measure_acceptance", dies)
    page = run_chain(open_page("overview"))
    [error] = page.error
    assert "The chain failed: " in error.value and "the engine was killed" in error.value and "\n" not in error.value
    found = studio(page).jobs["chain"].result
    assert newest(page, "profiles").value is found.profile
    film = json.loads(page.get("bidi_component")[0].proto.json)["film"]
    assert film["over"] == "failed" and len(film["frames"]) >= 3
