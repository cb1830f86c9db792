"""Compiled code stays within its buffers, whatever it is given, as AddressSanitizer sees it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.native.test_instruction_sets import RUNNABLE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Run `random_calls` with C that AddressSanitizer watches."""
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
        "PATH": f"{folder}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder), "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "SEQUOIA_NATIVE": "1", "PYTHONPATH": str(ROOT),
        "PYTHONMALLOC": "malloc",
    }  # fmt: skip
    environment.pop("SEQUOIA_INSTRUCTIONS", None)
    command = [sys.executable, "-m", "tests.core.native.random_calls"]
    return lambda *arguments: subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


@pytest.mark.slow
def test_random_arguments_are_answered_or_refused_within_bounds(checked):
    run = checked("10")
    assert run.returncode == 0, run.stderr[-4000:]
    done, refused = (int(re.search(rf"{name}=(\d+)", run.stdout)[1]) for name in ("done", "refused"))
    assert done >= 40 and refused >= 40


@pytest.mark.slow
def test_an_access_out_of_bounds_ends_the_process(checked):
    run = checked("0", "planted")
    assert run.returncode != 0 and "heap-buffer-overflow" in run.stderr
