"""Benchmarks run at their smallest sizes, print JSON last, and leave no files behind."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = {path.name for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
REHEARSED = "gpu.py"  # has a separate test
OPTIONS = ["dynamic.py --growth", f"passes.py --real {ROOT}/assets/demo/target", "servers.py --engines llama.cpp"]
OPTIONS += ["audit.py --engines llama.cpp", "dynamic.py --budget"]


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(BENCHMARKS - {REHEARSED, "dynamic.py"}) + OPTIONS)
def test_a_benchmark_runs(command, tmp_path):
    name, *options = shlex.split(command)
    records = sorted((ROOT / "benchmarks").rglob("*.json"))
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, "--quick", *options],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "No module named 'sequoia_extras" in done.stderr:
        pytest.skip((done.stdout or done.stderr).splitlines()[-1])
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])
    assert not list(tmp_path.iterdir()) and sorted((ROOT / "benchmarks").rglob("*.json")) == records
