"""The shipped draft head on every page that uses a draft."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import newest, open_page, profile, run_job, settled, studio
from ui.runs.run_files import run_from_bytes, run_to_bytes
from ui.session.state import Chosen

HEAD = PairSpec(str(DEMO_PAIR / "target"), str(DEMO_PAIR / "head"))
pytestmark = pytest.mark.usefixtures("assets")


def opened(name: str, **query: str) -> AppTest:
    return open_page(name, {"pair": HEAD}, **query)


def test_head_is_offered_as_a_draft() -> None:
    page = open_page("overview")
    page.selectbox(key="models_demo_draft").select("Head on the large model (EAGLE-3)")
    page = settled(next(b for b in page.button if b.label == "Use this pair").click().run())
    assert studio(page).pair.names == ("demo target", "demo head")
    assert "Demo pair with its head" in " ".join(part.value for part in page.markdown)
    assert any("Measure it on this machine" in button.label for button in page.button)


@pytest.mark.slow
def test_acceptance_by_depth_is_shown_and_used_for_planning() -> None:
    page = opened("draft")
    assert not any("hidden states" in part.value for part in page.markdown)
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    page = run_job(page, "measure", "Measure on the demo pair")
    matrix = newest(page, "vectors").value.by_depth
    figures = [json.loads(chart.proto.spec) for chart in page.get("plotly_chart")]
    heat = next(part for figure in figures for part in figure["data"] if part["type"] == "heatmap")
    assert [row[0] for row in heat["text"]] == [f"{row[0]:.0%}" for row in matrix.probs]
    low, high = (bound[1, 0] for bound in matrix.interval())
    assert heat["customdata"][1][0][1] == f" ({low:.1%} to {high:.1%})"
    told = next(part.value for part in page.markdown if "hidden states" in part.value)
    assert told.endswith("Trees are planned with this matrix.")
    own = profile()
    own.meta["draft"] = "demo head"
    studio(page).profile = Chosen(own, "a test")
    page = settled(page.run())
    told = next(part.value for part in page.markdown if "hidden states" in part.value)
    assert "predicted to reach" in told and "less than the tree planned by depth" in told and not page.warning
    vector = newest(page, "vectors").value
    wrong = replace(vector, prompt_ranks=tuple(0 * ranks for ranks in vector.prompt_ranks))
    studio(page).acceptance = Chosen(wrong, "a test")
    assert [part.value for part in settled(page.run()).warning if part.value.startswith("Wired wrong")]


@pytest.mark.slow
def test_head_is_profiled_decoded_and_raced() -> None:
    page = run_job(opened("machine"), "profile", "Measure first")
    assert newest(page, "profiles").value.meta["draft"] == "demo head"
    run = studio(run_job(opened("decode", tokens="16"), "decode")).last_run
    assert run["head"] and run_from_bytes(run_to_bytes(run), "run")["head"]
    race = opened("race", race_tokens="16")
    race = settled(race.button_group(key="race_methods").set_value(["Planned tree", "SpecExec"]).run())
    runs = studio(run_job(race, "race")).jobs["race"].result.runs
    assert len({run["text"] for run in runs.values()}) == 1 and all(run["head"] for run in runs.values())
