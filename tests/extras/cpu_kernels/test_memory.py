"""Compiled code stays within its buffers for any arguments, checked by AddressSanitizer."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extras.cpu_kernels.test_instruction_sets import RUNNABLE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Return a function that runs `random_calls` with AddressSanitizer."""
    compiler = shutil.which("gcc")
    if compiler is None or not RUNNABLE:
        pytest.skip("no gcc, or no instructions that compiled passes are written for")
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("gcc has no libasan.so")
    folder = tmp_path_factory.mktemp("sanitized")
    script = folder / "cc"
    script.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O1 -g -fsanitize=address -fno-omit-frame-pointer\n')
    script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder),
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "SEQUOIA_NATIVE": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONMALLOC": "malloc",
    }
    environment.pop("SEQUOIA_INSTRUCTIONS", None)
    command = [sys.executable, "-m", "tests.extras.cpu_kernels.random_calls"]
    return lambda *arguments: subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


@pytest.mark.slow
def test_random_arguments_never_cause_out_of_bounds_access(checked):
    run = checked("10")
    assert run.returncode == 0, run.stderr[-4000:]
    done, refused = (int(re.search(rf"{name}=(\d+)", run.stdout)[1]) for name in ("done", "refused"))
    assert done >= 40 and refused >= 40


@pytest.mark.slow
def test_sanitizer_catches_a_planted_fault(checked):
    run = checked("0", "planted")
    assert run.returncode != 0 and "heap-buffer-overflow" in run.stderr
