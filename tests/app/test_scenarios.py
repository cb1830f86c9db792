"""Scenarios: chosen in the sidebar, set for all pages, labelled, and left when something of one's own is used."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from sequoia_core import AcceptanceVector, HardwareProfile
from tests.app.conftest import metrics, open_page, profile, settled, state_of, vector
from ui.session import shipped

REAL = shipped.ASSETS
OWN = "Demo pair"
TITLE = "Llama-3-70B with an 8B draft on one L40, offloaded"


@pytest.fixture
def scenario_assets(assets):
    shutil.copytree(REAL / "scenarios", assets / "scenarios")
    for name in (
        "acceptance/llama3-70b-8b-cnn.json",
        "acceptance/demo-t0.json",
        "acceptance/demo-large-t0.json",
        "profiles/cpu-2core-bfloat16.json",
    ):
        shutil.copy(REAL / name, assets / name)
    return assets


def text(page) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def box(page):
    return next((found for found in page.selectbox if found.key.startswith("sidebar_scenario")), None)


def choose(page, title: str):
    return settled(box(page).select(title).run())


def test_a_scenario_sets_every_page_and_says_what_it_is(scenario_assets) -> None:
    page = choose(open_page("tree"), TITLE)
    assert "hundreds of drafted tokens" in text(page) and "times modelled" in text(page)
    assert metrics(page)["Predicted speedup"][0].endswith("×") and "modelled" in state_of(page).value
    assert len(page.session_state["studio_profile"].sizes) > 10 and page.session_state["studio_profile"].modelled
    n, d = page.number_input(key="n").value, page.slider(key="depth").value
    assert n >= 100 and d >= 8  # a tree worth looking at
    page = choose(page, OWN)
    assert page.session_state["studio_profile"] is None and page.session_state["studio_acceptance"] is None
    assert "measured here" in state_of(page).value and "hundreds of drafted tokens" not in text(page)


def test_the_hardware_page_draws_a_scenario_as_modelled_beside_what_was_measured(scenario_assets) -> None:
    page = choose(open_page("machine"), TITLE)
    spec = next(c.proto.spec for c in page.get("plotly_chart") if c.proto.id.endswith("-hardware_times"))
    assert "modelled t(n)" in spec and "measured, median" not in spec
    assert "modelled" in state_of(page).value
    said = next(caption.value for caption in page.caption if "Measured there" in caption.value)
    assert "9.50× with n = 768, d = 17 and 11.68 tokens per step (Sequoia paper, table 2" in said
    assert "this vector expects 8.34 tokens per step" in said
    assert re.search(r"these times predict \d+\.\d\d×, 18% more\.", said)


def test_what_does_not_fit_ones_own_pair_is_said_once(scenario_assets) -> None:
    page = choose(open_page("tree"), "The demo pair with its target on disk")
    settled(page.segmented_control(key="tree_kind").set_value("Adaptive").run())
    said = next(caption.value for caption in page.caption if "No speedup is predicted of them" in caption.value)
    assert said.count("draft demo draft-large, not demo draft") == 1  # vector and profile both name the draft


def test_a_profile_of_ones_own_ends_the_scenario(scenario_assets, tmp_path) -> None:
    page = choose(open_page("machine"), TITLE)
    settled(page.segmented_control(key="hardware_way").set_value("Upload").run())
    page.file_uploader(key="hardware_file").upload("own.json", json.dumps(profile(0.001).to_json()).encode())
    settled(page.run())
    assert box(page).value == OWN and "hundreds of drafted" not in text(page)
    assert page.session_state["studio_acceptance"] is None  # of the demo pair, as before


def test_without_scenarios_there_is_no_choice(assets) -> None:
    page = open_page("tree")
    assert box(page) is None


def test_every_shipped_scenario_gives_a_tree(scenario_assets) -> None:
    page = open_page("tree")
    own, *titles = box(page).options
    assert own == OWN and len(titles) == len(list((REAL / "scenarios").glob("*.json")))
    for title in titles:
        choose(page, title)
        assert box(page).value == title and not page.exception
        assert isinstance(page.session_state["studio_acceptance"], AcceptanceVector)
        assert isinstance(page.session_state["studio_profile"], HardwareProfile)
    assert vector() is not None
