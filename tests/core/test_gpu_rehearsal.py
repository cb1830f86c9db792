"""What is to run on a rented GPU runs on the CPU first: every section, without network and without pydantic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# such a machine has no pydantic
RUN = "import sys, runpy; sys.modules['pydantic'] = None; runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
SECTIONS = [
    "compiled", "copies", "demo", "exactness", "fused", "outside", "plain", "replay", "shapes", "streaming", "tests",
]  # fmt: skip


def rehearsed(out, *options, pytest_options=""):
    arguments = ["--rehearse", "--out", str(out), *options]
    code = f"import sys; sys.path[:0] = ['benchmarks', '.']; sys.argv[1:] = {arguments}; {RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTEST_ADDOPTS": pytest_options},
    )  # fmt: skip
    assert done.stdout, done.stderr[-2000:]
    return done, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine
def test_every_section_runs_and_is_not_run_again(tmp_path):
    out = tmp_path / "gpu.json"
    elsewhere = "--deselect tests/core/test_other_device.py --deselect tests/core/decoding"  # `make test` runs those
    done, found = rehearsed(out, pytest_options=elsewhere)
    faults = {name: section["error"] for name, section in found["sections"].items() if "error" in section}
    assert not faults and done.returncode == 0, (faults, done.stderr[-2000:])
    assert found["rehearsal"] and found["torch"] and found["device"]
    assert sorted(found["sections"]) == SECTIONS and all(section["rows"] for section in found["sections"].values())
    found["sections"]["copies"] = {"error": "out of memory"}
    out.write_text(json.dumps(found))
    again = rehearsed(out, "--sections", "copies,shapes")[1]["sections"]
    assert again["shapes"] == found["sections"]["shapes"] and "rows" in again["copies"]


@pytest.mark.slow
def test_tests_that_fail_fail_the_command(tmp_path):
    done, found = rehearsed(tmp_path / "gpu.json", "--sections", "tests", pytest_options="--deselect tests/core")
    assert done.returncode == 1 and "pytest ended with 5" in found["sections"]["tests"]["error"]


@pytest.mark.slow
def test_all_of_it_is_estimated_to_fit_into_twenty_minutes_on_an_h100():
    code = (
        "import sys; sys.path[:0] = ['benchmarks', '.']; import gpu; "
        "found = gpu.estimates(gpu.Peaks.stated()); assert found.keys() == gpu.WORK.keys(); "
        "print(sum(found.values()), gpu.BUDGET_SEC)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    seconds, budget = map(float, said.split())
    assert 300 < seconds < budget == 1200
