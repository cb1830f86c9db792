"""Sweeps on the draft page: reading one, its recommendation, using a cell, and running a small sweep."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sequoia_core.files.faults import Cancelled
from sequoia_core.models.pair_spec import PairSpec
from sequoia_extras.sweeps.compare import Setting, compare_sweep
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.recommendations import predict_speeds, recommend_drafts
from sequoia_extras.sweeps.results import Results, read_rows
from tests.app.conftest import metrics, open_page, profile, settled, studio, wait_for
from tests.extras.sweeps.hand_made import decoded, measured, row
from ui.draft.sweep_run import example_plan
from ui.jobs.jobs import Job, JobContext
from ui.jobs.sweep_job import sweep_work
from ui.markdown import escaped
from ui.session import session
from ui.session.state import Chosen

pytestmark = pytest.mark.usefixtures("assets")
PLAN = """
temperatures = [0.0]
new_tokens = 16
max_size = 16
[[pairs]]
name = "demo <b>"
dtype = "float32"
drafters = ["model", "lookup"]
[[prompts]]
domain = "code"
file = "prompts.jsonl"
count = 2
"""
PROMPTS = ("=def add(a, b):\n    return", "![x](http://example.org/x.png) class Point:")
NAMES = {"target": "demo target", "draft": "demo draft"}


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    """A sweep of the demo pair and of lookup over two prompts."""
    rows = [measured(text, [1, 0, 1, 2], pair="demo <b>") | NAMES for text in PROMPTS]
    rows += [decoded(text, [1] * place + [2]) | {"target": "demo target"} for place, text in enumerate(PROMPTS)]
    Results(tmp_path / "swept").add(rows)
    return tmp_path / "swept"


def compared(folder: Path, **query: str):
    page = open_page("draft", draft_section="Which draft?", **query)
    studio(page).sweep_folder = str(folder)
    return settled(page.run())


def test_a_profile_of_the_session_is_offered_before_the_shipped_ones(assets, swept: Path) -> None:
    page = compared(swept)
    own = Chosen(profile(0.03), "your file mine.json")
    studio(page).own_profiles = {"mine.json": own}
    studio(page).profile = own
    options = settled(page.run()).selectbox(key="compare_hardware").options
    assert options == [f"In use: {profile().device}", f"Shipped: {profile().device}"]


def test_the_page_shows_the_recommendation_of_the_core(assets, swept: Path) -> None:
    page = compared(swept)
    comparison = compare_sweep(read_rows(swept))
    speeds = predict_speeds(comparison, [profile()])
    setting = Setting(0.0, 1.0, "code")
    (answer,) = recommend_drafts(comparison, speeds, setting)
    assert any(escaped(answer.summary) in text.value for text in page.markdown)
    assert page.selectbox(key="compare_hardware").options == [f"Shipped: {profile().device}"]
    spec = page.get("plotly_chart")[0].proto.spec
    for drafter in comparison.drafters:
        assert f"{speeds[drafter, setting].speedup.value:.2f}" in spec
    assert "<b>" not in spec and "&lt;b&gt;" in spec


def test_two_machines_with_one_name_are_distinguished(tmp_path: Path) -> None:
    rows = [measured("a", [1, 0, 1]) | NAMES]
    for factor, instructions, worker in ((10, "AMX", "h:1"), (20, "AVX-512", "h:2"), (30, "AMX", "other:3")):
        meta = profile().meta | {"instructions": instructions}
        found = replace(profile(), verify_sec=factor * profile().verify_sec, meta=meta)
        timed = {"result": json.dumps(found.to_json()), "worker": worker}
        rows.append(row("profile", "", domain="", k=worker) | NAMES | timed)
    Results(tmp_path / "made").add(rows)
    page = compared(tmp_path / "made")
    options = [name for name in page.selectbox(key="compare_hardware").options if name.startswith("This sweep")]
    device = profile().device
    assert sorted(options) == [f"This sweep: {device}, {more}" for more in ("AMX, h", "AMX, other", "AVX-512")]


def test_a_cell_shows_its_prompts_and_its_vector_can_be_used(swept: Path) -> None:
    page = compared(swept)
    cells = {drafter.kind: cell for (drafter, _), cell in compare_sweep(read_rows(swept)).cells.items()}
    settled(page.selectbox(key="compare_drafter").set_value("lookup").run())
    shown = metrics(page)
    assert shown["Tokens per step"][0] == f"{cells['lookup'].tokens_per_step.value:.2f}"
    assert shown["First guess right"][0] == "–" and not [b for b in page.button if b.key == "compare_use"]
    assert sorted(page.dataframe[0].value["prompt"]) == sorted(text.replace("\n", " ") for text in PROMPTS)
    page = settled(page.selectbox(key="compare_drafter").set_value("demo <b>").run())
    page = settled(page.button(key="compare_use").click().run())
    vector = studio(page).acceptance.value
    assert vector == cells["model"].vector and vector.holds_for.draft == "demo draft"
    assert "<" not in studio(page).acceptance.source
    assert studio(page).shape[0] <= 16


def test_a_missing_folder_and_a_damaged_file_are_reported(tmp_path: Path, swept: Path) -> None:
    assert "found no folder rows" in compared(tmp_path).error[0].value
    file = next((swept / "rows").iterdir())
    file.write_bytes(file.read_bytes()[:-40])
    page = compared(swept)
    assert "expected a results file" in page.error[0].value and not page.get("plotly_chart")


def test_missing_cells_are_dashes(tmp_path: Path) -> None:
    rows = [measured("a", [1, 0, 1]), measured("b", [1, 1], domain="edits"), decoded("a", [2, 1], temperature=0.6)]
    Results(tmp_path / "made").add(rows)
    page = compared(tmp_path / "made")
    assert page.selectbox(key="compare_hardware").value is None
    assert any("no speedup is predicted" in text.value for text in page.markdown)
    data = json.loads(page.get("plotly_chart")[0].proto.spec)["data"][1]
    assert set(data["text"]) == {"–"}


def test_races_are_shown(tmp_path: Path) -> None:
    rates = {name: {"tokens_per_sec": rate} for name, rate in {"autoregressive": 2.0, "sequoia": 5.0}.items()}
    record = rates | {"settings": {"device": "a machine", "prompts": 3}, "predicted_speedup": 2.25}
    Results(tmp_path / "made").add([decoded("a", [2, 1]), row("race", "", result=json.dumps(record))])
    page = compared(tmp_path / "made")
    (races,) = [table.value for table in page.dataframe if "predicted" in table.value]
    assert races.to_dict("records")[0].items() >= {"predicted": 2.25, "sequoia": 2.5, "prompts": 3}.items()


@pytest.mark.parametrize(
    "spec", [PairSpec(draft="none"), PairSpec('/a "b"/\U0001f333', "d", dtype="float32", offload="disk")]
)
def test_the_example_plan_has_the_pair_in_use(monkeypatch, spec: PairSpec) -> None:
    import tomllib

    monkeypatch.setattr(session, "pair_spec", lambda: spec)
    plan = tomllib.loads(example_plan())
    (pair,) = plan["pairs"]
    assert {key: pair.get(key) for key in asdict(spec)} == asdict(spec)
    assert pair["drafters"] == (["lookup"] if spec.is_alone else ["model", "lookup", "both"])
    assert plan["profile"] != spec.is_alone and plan["prompts"][0]["domain"] == "code"


@pytest.mark.slow
def test_a_sweep_runs_and_its_plan_is_then_done(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    page = open_page("draft", draft_section="Which draft?")
    next(each for each in page.text_area if each.key.startswith("sweep_plan")).set_value(
        PLAN.replace("prompts.jsonl", str(tmp_path / "prompts.jsonl"))
    )
    page.text_input(key="sweep_folder").set_value(str(folder))

    def run() -> str:
        settled(page.button(key="sweep_start").click().run())
        job = studio(page).jobs["sweep"]
        wait_for(lambda: not job.active, 300.0)  # a new process imports PyTorch and loads the pair
        assert job.error is None, job.error
        settled(page.run())
        assert page.text_input(key="compare_folder").value == str(folder) and page.get("plotly_chart")
        return " ".join(text.value for text in page.caption)

    assert "2 of 2 jobs done, 0 failed" in run()
    results = Results(folder)
    keys, faults = results.read_keys()
    assert len(keys) == 4 and not faults
    settled(page.button(key="sweep_check").click().run())
    assert page.success[0].value.startswith("The plan is valid: 0 jobs to run, 4 rows")


def test_a_cancelled_sweep_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    (tmp_path / "plan.toml").write_text(PLAN)
    job = Job("Sweep")
    job.cancel_event.set()
    with pytest.raises(Cancelled):
        sweep_work(read_plan(tmp_path / "plan.toml"), str(tmp_path / "new"))(JobContext(job))
    assert job.result.folder == str(tmp_path / "new") and job.result.state.jobs == 2 and not job.result.state.rows
