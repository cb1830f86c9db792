"""A target without a draft: chosen in the sidebar, decoded, and refused where a draft is required."""

import json
import threading

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import PAGES, ROOT, metrics, open_page, run_job, settled, state_of, studio
from ui.plan import models
from ui.session import model_pairs

ALONE = PairSpec(draft="none")
BLOCKED = {  # page -> the query that shows its control, and the control's label
    "overview": ({}, "Measure it on this machine"),
    "draft": ({"acceptance_way": "Measure"}, "Measure on"),
    "machine": ({}, "Measure this machine"),
    "exact": ({"robustness_section": "Losslessness"}, "Start"),
}


@pytest.fixture(scope="module")
def loaded() -> PairSpec:
    """The demo target, in memory."""
    model_pairs.shared_pair(ALONE, threading.Event())
    yield ALONE
    model_pairs.unload_pair()


def opened(name: str, state: dict | None = None, **query: str) -> AppTest:
    return open_page(name, {"pair": ALONE} | (state or {}), **query)


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("name", BLOCKED)
def test_controls_that_require_a_draft_are_disabled(name: str, assets, loaded) -> None:
    query, control = BLOCKED[name]
    page = opened(name, **query)
    button = next(button for button in page.button if control in button.label)
    assert button.disabled
    messages = [info.value for info in page.info if "needs a draft model" in info.value]
    assert len(messages) == 1 and "the demo target without a draft" in messages[0] and "in the bar" in messages[0]


@pytest.mark.slow
def test_every_page_shows_its_run(assets, loaded) -> None:
    page = run_job(opened("decode", tokens="64", source="file"), "decode")
    run = studio(page).last_run
    assert (run["target"], run["draft"], run["tree_source"]) == ("demo target", "none", "trees from text already seen")
    assert sum(len(step["pieces"]) for step in run["steps"]) == run["baseline"]["tokens"] == 64 > len(run["steps"])
    sent = json.loads(page.get("bidi_component")[0].proto.json)
    assert ["tokens per step", f"{64 / len(run['steps']):.2f}", False] in sent["figures"]
    state = {"last_run": run, "runs": studio(page).runs}
    for path in PAGES:
        page = opened(path.stem, state)
        assert not page.error and "demo target without a draft" in " ".join(m.value for m in page.markdown)


def test_nothing_is_planned_without_a_draft(assets) -> None:
    page = opened("tree")
    assert "no prediction" in state_of(page).value and "×" not in state_of(page).value
    assert metrics(page)["Predicted speedup"][0] == "–"


def test_it_races_with_and_without_lookup(assets, loaded) -> None:
    page = run_job(opened("race", race_tokens="16"), "race")
    assert list(studio(page).jobs["race"].result.results) == ["Autoregressive", "Lookup"]
    assert "same text" in page.success[0].value


def test_the_sidebar_toggle_can_be_set_and_reset(assets) -> None:
    page = open_page("tree")

    def use() -> AppTest:
        button = next(button for button in page.button if button.label == "Use this pair")
        return settled(button.click().run())

    page = settled(page.toggle(key="models_alone").set_value(True).run())
    page = use()
    assert studio(page).pair == ALONE
    page.text_input(key="models_target").set_value(str(DEMO_PAIR / "draft"))
    page = use()
    assert studio(page).pair == PairSpec(str(DEMO_PAIR / "draft"), "none")
    page = settled(page.toggle(key="models_alone").set_value(False).run())
    page.text_input(key="models_target").set_value("")
    page = use()
    assert studio(page).pair == PairSpec()


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
    found = models.check_names(target, draft)
    assert found is None if problem is None else problem in found
