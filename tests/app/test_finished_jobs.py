"""What finished jobs bring into the session: on whichever page the user is, once, in the order they ended."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.design.tree import TokenTree
from tests.app.conftest import ROOT, open_page, profile, settled, vector
from ui.jobs.finished_jobs import ADOPTERS
from ui.jobs.jobs import Job
from ui.overview.chain_job import ChainResult
from ui.runs import runs

pytestmark = pytest.mark.usefixtures("assets")


def ended(label: str, result, *, info=None, state: str = "done", began: float = 1.0, steps: int = 0) -> Job:
    """A job as the worker leaves it."""
    job = Job(label, info)
    job.result, job.started, job.ended, job.step_count = result, began, began + 0.5, steps
    job.future.set_result(state)
    return job


def a_run(prompt: str) -> dict:
    step = {
        "index": 0, "shape": 0, "tokens": ["x"], "outcomes": "A", "draft": [0.5], "target": [0.5], "path": [0],
        "bonus": "x", "pieces": ["x"], "trials": [], "seconds": [0.001, 0.002, 0.0001, 0.0001], "finished": "length",
    }  # fmt: skip
    request = runs.DecodeRequest(prompt, TokenTree(np.array([-1])))
    return request.header() | {"shapes": [[-1]], "steps": [step], "text": "x", "target": "demo target"}


def with_jobs(name: str, **jobs: Job) -> AppTest:
    page = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=60)
    page.session_state["studio_jobs"] = jobs
    return settled(page.run())


@pytest.mark.parametrize("name", ["tree", "draft", "decode"])
def test_the_chain_is_adopted_on_any_page(name: str) -> None:
    found = ChainResult(acceptance=vector(0.3), profile=profile(0.5), runs=(a_run("by the chain"),))
    state = with_jobs(name, chain=ended("Whole chain", found, info="demo pair")).session_state
    assert state["studio_acceptance"] is found.acceptance and state["studio_profile"] is found.profile
    assert state["studio_last_run"] is found.runs[0]


def test_a_result_is_adopted_once() -> None:
    page = with_jobs("tree", measure=ended("Measuring acceptance", vector(0.3), info=("measured", "measured, T = 0")))
    assert [toast.value for toast in page.toast] == ["Measuring acceptance: in use."]
    page.session_state["studio_acceptance"] = vector(0.2)
    page = settled(page.run())
    assert page.session_state["studio_acceptance"] == vector(0.2) and not page.toast


@pytest.mark.parametrize("first", ["chain", "decode"])
def test_the_run_that_began_last_is_the_one_on_show(first: str) -> None:
    began = {"chain": 1.0, "decode": 2.0} if first == "chain" else {"chain": 2.0, "decode": 1.0}
    request = runs.DecodeRequest("by hand", TokenTree(np.array([-1])))
    decode = ended("Decoding", a_run("by hand"), info=request, began=began["decode"], steps=1)
    chain = ended("Whole chain", ChainResult(runs=(a_run("by the chain"),)), info="demo pair", began=began["chain"])
    page = with_jobs("decode", decode=decode, chain=chain)
    last = "by hand" if first == "chain" else "by the chain"
    assert page.session_state["studio_last_run"]["prompt"] == last
    assert ("decode" in page.session_state["studio_jobs"]) == (first == "chain")
    assert page.text_area(key="decode_prompt").value == last


@pytest.mark.parametrize(
    ("name", "result", "kept"),
    [("measure", vector(0.3), "studio_acceptance"), ("profile", profile(0.5), "studio_profile")],
)
def test_a_failed_measurement_is_not_used(name: str, result, kept: str) -> None:
    page = with_jobs("tree", **{name: ended("It", result, info=("x", "x"), state="failed")})
    assert kept not in page.session_state and not page.toast


def test_what_a_chain_had_finished_before_it_failed_is_used() -> None:
    found = ChainResult(profile=profile(0.5))
    page = with_jobs("tree", chain=ended("Whole chain", found, info="demo pair", state="failed"))
    assert page.session_state["studio_profile"] is found.profile and "studio_acceptance" not in page.session_state


def test_steps_before_a_failure_are_kept() -> None:
    request = runs.DecodeRequest("by hand", TokenTree(np.array([-1])))
    job = ended("Decoding", a_run("by hand"), info=request, state="failed", steps=1)
    assert with_jobs("tree", decode=job).session_state["studio_last_run"] is job.result


def test_evidence_is_kept_wherever_the_user_is() -> None:
    record = {"settings": {}}
    page = with_jobs("tree", robustness_losslessness=ended("Checking losslessness", record))
    assert page.session_state["studio_evidence_losslessness"] is record


def test_every_job_that_is_started_by_a_fixed_name_has_an_adopter() -> None:
    started = set()
    for path in [*(ROOT / "ui").rglob("*.py"), *(ROOT / "pages").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="job_panel"), attr="start" | "submit"),
                    args=[ast.Constant(value), *_],
                ):
                    started.add(value)
    assert started == {"measure", "profile", "decode", "chain", "race", "replay", "sweep"} <= set(ADOPTERS)


def test_nothing_to_adopt_changes_nothing() -> None:
    assert not open_page("tree").toast
    waiting = Job("Measuring acceptance")
    assert "studio_acceptance" not in with_jobs("tree", measure=waiting).session_state
