"""Rehearses the GPU benchmark on the CPU: every section, without network and without pydantic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# such a machine has no pydantic
RUN = "import sys, runpy; sys.modules['pydantic'] = None; runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
SECTIONS = [
    "compiled",
    "copies",
    "demo",
    "exactness",
    "fused",
    "inductor",
    "outside",
    "plain",
    "profile",
    "replay",
    "shapes",
    "streaming",
    "tests",
]


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine
def test_every_benchmark_section_runs(tmp_path):
    # `make test` runs those
    elsewhere = "--deselect tests/extras/cuda_graphs/test_other_device.py --deselect tests/core/decoding"
    arguments = ["--rehearse", "--out", str(tmp_path / "gpu.json")]
    code = f"import sys; sys.path[:0] = ['benchmarks', '.']; sys.argv[1:] = {arguments}; {RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTEST_ADDOPTS": elsewhere},
    )
    assert done.stdout, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    faults = {name: section["error"] for name, section in found["sections"].items() if "error" in section}
    assert not faults and done.returncode == 0, (faults, done.stderr[-2000:])
    assert found["rehearsal"] and found["torch"] and found["device"]
    assert sorted(found["sections"]) == SECTIONS and all(section["rows"] for section in found["sections"].values())
