"""Scenarios: chosen in the sidebar, set for all pages, labelled, and left when something of one's own is used."""

from __future__ import annotations

import re
import shutil

import pytest

from sequoia_core import AcceptanceVector, HardwareProfile
from tests.app.conftest import open_page, settled, state_of
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


def test_a_scenario_sets_every_page_until_something_of_ones_own_is_used(scenario_assets) -> None:
    page = choose(open_page("draft"), TITLE)
    assert "hundreds of drafted tokens" in text(page) and "times modelled" in text(page)
    assert "modelled" in state_of(page).value
    assert len(page.session_state["studio_profile"].sizes) > 10 and page.session_state["studio_profile"].modelled
    page = choose(page, OWN)
    assert page.session_state["studio_profile"] is None and page.session_state["studio_acceptance"] is None
    assert "measured here" in state_of(page).value and "hundreds of drafted tokens" not in text(page)
    page = choose(page, TITLE)
    settled(page.segmented_control(key="acceptance_way").set_value("Upload").run())
    settled(page.file_uploader(key="acceptance_file").upload("mine.csv", b"0.7\n0.1\n").run())
    assert box(page).value == OWN and page.session_state["studio_profile"] is None


@pytest.mark.slow
def test_the_hardware_page_draws_a_scenario_as_modelled_beside_what_was_measured(scenario_assets) -> None:
    page = choose(open_page("machine"), TITLE)
    spec = next(c.proto.spec for c in page.get("plotly_chart") if c.proto.id.endswith("-hardware_times"))
    assert "modelled t(n)" in spec and "measured, median" not in spec
    assert "modelled" in state_of(page).value
    said = next(caption.value for caption in page.caption if "Measured there" in caption.value)
    assert "9.50× with n = 768, d = 17 and 11.68 tokens per step (Sequoia paper, table 2" in said
    assert "this vector expects 8.34 tokens per step" in said
    assert re.search(r"these times predict \d+\.\d\d×, 18% more\.", said)


@pytest.mark.slow
def test_every_shipped_scenario_gives_a_tree(scenario_assets) -> None:
    page = open_page("tree")
    own, *titles = box(page).options
    assert own == OWN and len(titles) == len(list((REAL / "scenarios").glob("*.json")))
    for title in titles:
        choose(page, title)
        assert box(page).value == title and not page.exception
        assert isinstance(page.session_state["studio_acceptance"], AcceptanceVector)
        assert isinstance(page.session_state["studio_profile"], HardwareProfile)
