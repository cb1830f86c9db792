"""What finished jobs bring into the session: on whichever page the user is, once, in the order they ended."""

from __future__ import annotations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.design.tree import TokenTree
from tests.app.conftest import open_page, profile, settled, vector
from tests.app.test_run_comparison import a_run
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


def run_of(prompt: str) -> dict:
    return a_run([["x"]]) | {"prompt": prompt}


def with_jobs(name: str, **jobs: Job) -> AppTest:
    return open_page(name, {"jobs": jobs})


MEASURED, RUN, RECORD = vector(0.3), run_of("by hand"), {"settings": {}}
TIMED = profile(0.5)
BY_HAND = runs.DecodeRequest("by hand", TokenTree(np.array([-1])))


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize(
    ("name", "job", "kept"),
    [
        (
            "chain",
            ended("Whole chain", ChainResult(acceptance=MEASURED, profile=TIMED, runs=(RUN,)), info="demo pair"),
            (MEASURED, TIMED, RUN),
        ),
        ("measure", ended("It", MEASURED, info=("measured", "m"), state="cancelled"), (MEASURED,)),
        ("measure", ended("It", MEASURED, info=("measured", "m"), state="failed"), ()),
        ("decode", ended("Decoding", RUN, info=BY_HAND, state="failed", steps=1), (RUN,)),
        ("robustness_losslessness", ended("Checking losslessness", RECORD), (RECORD,)),
    ],
)
def test_what_an_ended_job_leaves_is_used_on_any_page(name: str, job: Job, kept: tuple) -> None:
    state = with_jobs("tree", **{name: job}).session_state
    places = ("studio_acceptance", "studio_profile", "studio_last_run", "studio_evidence_losslessness")
    found = [state[place] for place in places if place in state]
    assert len(found) == len(kept) and all(one is other for one, other in zip(found, kept, strict=True))


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
    decode = ended("Decoding", run_of("by hand"), info=request, began=began["decode"], steps=1)
    chain = ended("Whole chain", ChainResult(runs=(run_of("by the chain"),)), info="demo pair", began=began["chain"])
    page = with_jobs("decode", decode=decode, chain=chain)
    last = "by hand" if first == "chain" else "by the chain"
    assert page.session_state["studio_last_run"]["prompt"] == last
    assert ("decode" in page.session_state["studio_jobs"]) == (first == "chain")
