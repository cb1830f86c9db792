"""The first page: the whole chain with a real engine, its film and a failure."""

from __future__ import annotations

import json
import threading

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import prompts_for
from sequoia_core.studies.measure_acceptance import vector_from_prompts
from tests.app.conftest import ROOT, metrics, open_page, settled, wait_for
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
    wait_for(lambda: not page.session_state["studio_jobs"]["chain"].active)
    return settled(page.run())


@pytest.mark.slow
def test_the_whole_chain_reaches_the_other_pages(assets, tiny_chain) -> None:
    page = run_chain(open_page("overview"))
    assert not page.error
    found = page.session_state["studio_jobs"]["chain"].result
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
    shown = metrics(page)
    assert shown["Measured speedup"][0].endswith("×") and "16 tokens" in shown["Measured speedup"][1]
    assert shown["Tokens per step"][1].startswith("expected")
    state = page.session_state
    assert "measured here" in state["studio_acceptance_source"] and "measured here" in state["studio_profile_source"]
    assert state["studio_last_run"]["baseline"]["tokens"] == 16
    assert state["studio_profile"].max_size == 4


@pytest.mark.slow
def test_it_goes_on_measuring_where_the_chain_stopped(assets, tiny_chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_job, "MEASURE_SEC", 1e-9)
    monkeypatch.setattr(shipped, "prompts", lambda: [f"DEF F{number}(A):" for number in range(12)])
    page = run_chain(open_page("overview"))
    first = page.session_state["studio_acceptance"]
    assert len(first.prompt_trials) == chain_job.LEAST_PROMPTS
    assert "4 prompts left" in page.button(key="chain_go_on").label  # of 12, the last four are decoded
    page = settled(page.button(key="chain_go_on").click().run())
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: not job.active)
    page = settled(page.run())
    assert job.state == "done", job.error
    whole = page.session_state["studio_acceptance"]
    assert len(whole.prompt_trials) == 8 and (whole.prompt_sums[:4] == first.prompt_sums).all()
    assert all(button.key != "chain_go_on" for button in page.button)


@pytest.mark.slow
def test_measuring_ends_once_the_plan_is_settled() -> None:
    vector = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-large-t0.json")
    profile = HardwareProfile.load(ROOT / "assets" / "profiles" / "cpu-2core-bfloat16-avx512.json")

    def of_first(prompts: int) -> AcceptanceVector:
        kept = vector.prompt_sums[:prompts], vector.prompt_trials[:prompts]
        return vector_from_prompts(*kept, meta={}, holds_for=vector.holds_for, ranks=vector.prompt_ranks[:prompts])

    enough = chain_job._Enough(profile, threading.Event(), lambda share, words: None, Film())
    done = 0
    while not enough.reached.is_set():
        done += 1
        enough.count(of_first(done))
    tree = plan_tree(of_first(done), profile)
    assert done < len(vector.prompt_trials) and prompts_for(tree, of_first(done), within=chain_job.WITHIN) <= done
    assert not any(prompts_for(tree, of_first(m), within=chain_job.WITHIN) <= m for m in range(8, done, 4))
    whole = plan_tree(vector, profile)
    assert (tree.size, tree.depth) == (whole.size, whole.depth)


def test_the_chain_measures_on_other_prompts_than_it_decodes(assets, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        chain_job, "chain_work", lambda *prompts, **pair: given.extend(sum(prompts, [])) or (lambda context: None)
    )
    open_page("overview").button(key="chain_start").click().run()
    assert len(given) >= 2 and len(set(given)) == len(given)


@pytest.mark.slow
def test_a_chain_that_dies_says_why_and_keeps_what_it_had(assets, tiny_chain, monkeypatch: pytest.MonkeyPatch) -> None:
    import sequoia_core

    def dies(*given, **options):
        raise RuntimeError("the engine was killed")

    monkeypatch.setitem(vars(sequoia_core), "measure_acceptance", dies)
    page = run_chain(open_page("overview"))
    [error] = page.error
    assert "The chain failed: " in error.value and "the engine was killed" in error.value and "\n" not in error.value
    found = page.session_state["studio_jobs"]["chain"].result
    assert page.session_state["studio_profile"] is found.profile
    film = json.loads(page.get("bidi_component")[0].proto.json)["film"]
    assert film["over"] == "failed" and len(film["frames"]) >= 3
