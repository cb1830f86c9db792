"""The shipped head on every page that takes a draft: chosen, measured by depth, planned, decoded, raced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import open_page, profile, run_job, settled
from ui.runs.run_files import run_from_bytes, run_to_bytes

HEAD = PairSpec(str(DEMO_PAIR / "target"), str(DEMO_PAIR / "head"))
pytestmark = pytest.mark.usefixtures("assets")


def opened(name: str, **query: str) -> AppTest:
    return open_page(name, {"pair": HEAD}, **query)


def test_it_is_chosen_beside_the_drafts() -> None:
    page = open_page("overview")
    page.selectbox(key="sidebar_demo_draft").select("Head on the large model (EAGLE-3)")
    page = settled(next(b for b in page.button if b.label == "Use this pair").click().run())
    assert page.session_state["studio_pair"].names == ("demo target", "demo head")
    assert "Demo pair with its head" in " ".join(part.value for part in page.sidebar.markdown)
    assert any("Measure it on this machine" in button.label for button in page.button)


@pytest.mark.slow
def test_its_acceptance_is_shown_by_depth_and_planned_by() -> None:
    page = opened("draft")
    assert not any("true states" in part.value for part in page.markdown)
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    page = run_job(page, "measure", "Measure on the demo pair")
    matrix = page.session_state["studio_acceptance"].by_depth
    figures = [json.loads(chart.proto.spec) for chart in page.get("plotly_chart")]
    heat = next(part for figure in figures for part in figure["data"] if part["type"] == "heatmap")
    assert [row[0] for row in heat["text"]] == [f"{row[0]:.0%}" for row in matrix.probs]
    low, high = (bound[1, 0] for bound in matrix.interval())
    assert heat["customdata"][1][0][1] == f" ({low:.1%} to {high:.1%})"
    told = next(part.value for part in page.markdown if "true states" in part.value)
    assert (
        "of n = 32" in told.lower() and "less than the tree planned by depth" in told
    )  # the times are another draft's
    page.session_state["studio_profile"] = own = profile()
    own.meta["draft"] = "demo head"
    page = settled(page.run())
    told = next(part.value for part in page.markdown if "true states" in part.value)
    assert "would promise" in told and "×" in told and not page.warning
    vector = page.session_state["studio_acceptance"]
    page.session_state["studio_acceptance"] = replace(
        vector, prompt_ranks=tuple(0 * ranks for ranks in vector.prompt_ranks)
    )
    assert [part.value for part in settled(page.run()).warning if part.value.startswith("Wired wrong")]


@pytest.mark.slow
def test_it_is_timed_decoded_and_raced() -> None:
    page = run_job(opened("machine"), "profile", "Measure first")
    assert page.session_state["studio_profile"].meta["draft"] == "demo head"
    run = run_job(opened("decode", tokens="16"), "decode").session_state["studio_last_run"]
    assert run["head"] and run_from_bytes(run_to_bytes(run), "run")["head"]
    race = opened("race", race_tokens="16")
    race = settled(race.button_group(key="race_methods").set_value(["Planned tree", "SpecExec"]).run())
    runs = run_job(race, "race").session_state["studio_jobs"]["race"].result.runs
    assert len({run["text"] for run in runs.values()}) == 1 and all(run["head"] for run in runs.values())
