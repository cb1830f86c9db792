"""The number of cores that a process may use, by its affinity and the quotas of its control groups."""

import os
import shutil
import subprocess
import sys

import pytest

from sequoia_core.models import processor
from sequoia_core.models.processor import allowed_cores


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000\n"}, 8),
        ("0::/", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/app/worker", {"app/cpu.max": "250000 100000\n", "app/worker/cpu.max": "max 100000\n"}, 2),
        ("0::/../..", {"cpu.max": "300000 100000\n"}, 3),
        ("3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "400000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 4),
        ("3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 8),
        ("3:cpu:/elsewhere", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ("5:cpuset:/job", {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/", {"cpu.max": "damaged\n"}, 8),
        (None, {}, 8),
    ],
)
@pytest.mark.sample(10)
def test_quotas_of_both_control_group_versions_limit_the_cores(groups, files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert allowed_cores(tmp_path) == expected


LIMITED = """
import warnings
from sequoia_core.models.device import device_name
from sequoia_core.models.threads import limit_threads
import torch
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    limit_threads()
    limit_threads()
print(torch.get_num_threads(), device_name().endswith(", 1 core"), *[str(each.message) for each in found])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("taskset") is None or (os.cpu_count() or 1) < 2, reason="no taskset, or one core")
def test_a_process_on_one_core_uses_one_thread_and_warns_once():
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, "-c", LIMITED]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("1 True PyTorch would use 2 threads") and run.stdout.count("would use") == 1
