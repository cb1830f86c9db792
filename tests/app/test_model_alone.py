"""One model without a draft: chosen in the sidebar, decoded with, and every page says what it cannot do."""

import threading

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import PAGES, ROOT, metrics, open_page, run_job, settled
from ui import sidebar
from ui.session import model_pairs

ALONE = PairSpec(draft="none")
BLOCKED = {  # page -> what brings its control up, and the control's label
    "overview": ({}, "Measure it on this machine"),
    "draft": ({"acceptance_way": "Measure"}, "Measure on"),
    "machine": ({"hardware_way": "Measure"}, "Measure this machine"),
    "exact": ({"robustness_section": "Losslessness"}, "Start"),
}


@pytest.fixture(scope="module")
def loaded() -> PairSpec:
    """The demo target, in memory."""
    model_pairs.shared_pair(ALONE, threading.Event())
    yield ALONE
    model_pairs.unload_pair()


def opened(name: str, held: dict | None = None, **query: str) -> AppTest:
    return open_page(name, {"pair": ALONE} | (held or {}), **query)


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("name", BLOCKED)
def test_what_needs_a_draft_says_so_and_cannot_be_started(name: str, assets, loaded) -> None:
    query, control = BLOCKED[name]
    page = opened(name, **query)
    button = next(button for button in page.button if control in button.label)
    assert button.disabled
    said = [info.value for info in page.info if "needs a draft model" in info.value]
    assert len(said) == 1 and "the demo target without a draft" in said[0] and "Change pair" in said[0]


@pytest.mark.slow
def test_it_decodes_and_every_page_runs_with_its_run(assets, loaded) -> None:
    page = run_job(opened("decode", tokens="64", source="file"), "decode")
    run = page.session_state["studio_last_run"]
    assert (run["target"], run["draft"], run["tree_source"]) == ("demo target", "none", "trees of text already seen")
    assert sum(len(step["pieces"]) for step in run["steps"]) == run["baseline"]["tokens"] == 64 > len(run["steps"])
    assert metrics(page)["Tokens per step"][0] == f"{64 / len(run['steps']):.2f}" > "1.00"
    held = {name: page.session_state[f"studio_{name}"] for name in ("last_run", "runs", "run_origins")}
    for path in PAGES:
        page = opened(path.stem, held)
        assert not page.error and "demo target without a draft" in " ".join(m.value for m in page.sidebar.markdown)


def test_it_races_against_itself_without_lookup(assets, loaded) -> None:
    page = run_job(opened("race", race_tokens="16"), "race")
    assert list(page.session_state["studio_jobs"]["race"].result.results) == ["Autoregressive", "Lookup"]
    assert "same text" in page.success[0].value


def test_it_is_chosen_in_the_sidebar_and_left_again(assets) -> None:
    page = open_page("tree")

    def use() -> AppTest:
        button = next(button for button in page.sidebar.button if button.label == "Use this pair")
        return settled(button.click().run())

    page = settled(page.toggle(key="sidebar_alone").set_value(True).run())
    page = use()
    assert page.session_state["studio_pair"] == ALONE
    page.text_input(key="sidebar_target").set_value(str(DEMO_PAIR / "draft"))
    page = use()
    assert page.session_state["studio_pair"] == PairSpec(str(DEMO_PAIR / "draft"), "none")
    page = settled(page.toggle(key="sidebar_alone").set_value(False).run())
    page.text_input(key="sidebar_target").set_value("")
    page = use()
    assert page.session_state["studio_pair"] == PairSpec()


@pytest.mark.parametrize(
    ("target", "draft", "problem"),
    [
        ("", "", None),
        ("owner/model", "owner/small-model_2.1", None),
        ("owner/model", "", "Draft: nothing given"),
        ("/no/such/folder", "owner/model", "no such folder"),
        (str(ROOT), "none", "no config.json"),
        ("owner/model", "<img src=x>", "hub id"),
    ],
)
@pytest.mark.sample(6)
def test_names_are_checked_before_loading(target: str, draft: str, problem: str | None) -> None:
    found = sidebar.pair_problem(target, draft)
    assert found is None if problem is None else problem in found
