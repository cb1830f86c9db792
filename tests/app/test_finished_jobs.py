"""Finished jobs change the session on any page, once, in the order of their ends."""

from __future__ import annotations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.trees.tree import TokenTree
from tests.app.conftest import open_page, profile, settled, studio, vector
from tests.app.test_run_comparison import a_run
from ui.jobs.jobs import Job
from ui.overview.chain_job import ChainResult
from ui.runs import runs
from ui.session.state import Chosen

pytestmark = pytest.mark.usefixtures("assets")


def ended(label: str, result, *, info=None, state: str = "done", began: float = 1.0, steps: int = 0) -> Job:
    """Return a finished job."""
    job = Job(label, info)
    job.result, job.started, job.ended, job.steps = result, began, began + 0.5, result["steps"] if steps else []
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
        ("losslessness", ended("Checking losslessness", RECORD), (RECORD,)),
    ],
)
def test_results_of_ended_jobs_are_used_on_any_page(name: str, job: Job, kept: tuple) -> None:
    session = studio(with_jobs("tree", **{name: job}))
    chosen = [each.value for own in (session.own_vectors, session.own_profiles) for each in own.values()]
    found = [*chosen, *filter(None, (session.last_run, session.evidence.get("losslessness")))]
    assert len(found) == len(kept) and all(one is other for one, other in zip(found, kept, strict=True))


def test_a_result_is_adopted_once() -> None:
    page = with_jobs("tree", measure=ended("Measuring acceptance", vector(0.3), info=("measured", "measured, T = 0")))
    assert [toast.value for toast in page.toast] == ["Measuring acceptance: in use."]
    studio(page).acceptance = Chosen(vector(0.2), "")
    page = settled(page.run())
    assert studio(page).acceptance.value == vector(0.2) and not page.toast


@pytest.mark.parametrize(("decoded", "measured"), [(2.0, 1.0), (1.0, 2.0)])
def test_the_run_that_began_last_is_shown(decoded: float, measured: float) -> None:
    decode = ended("Decoding", run_of("by hand"), info=BY_HAND, began=decoded, steps=1)
    chain = ended("Whole chain", ChainResult(runs=(run_of("by the chain"),)), info="demo pair", began=measured)
    page = with_jobs("decode", decode=decode, chain=chain)
    assert studio(page).last_run["prompt"] == ("by hand" if decoded > measured else "by the chain")
    assert ("decode" in studio(page).jobs) == (decoded > measured)
