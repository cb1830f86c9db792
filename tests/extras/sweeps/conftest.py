"""The rows of the small sweep from one process, the reference for every other way of running it."""

import pytest

from tests.sweep_plans import run_locally, untimed, write_plan


@pytest.fixture(scope="package")
def serial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial")
    state = run_locally(write_plan(folder), folder / "out")
    assert state.done == state.jobs == 24 and not state.failed
    return untimed(folder / "out")
