"""Worker processes need nothing of the script that starts them, and do not run it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
from sequoia_core.sweeps.jobs import Job
from sequoia_core.sweeps.plan import PairSection
from sequoia_core.sweeps.executors import LocalWorkers

print("script", __name__)  # no guard: an app's page has none
pair = PairSection(name="nobody", target="/nowhere", draft="/nowhere")
workers = LocalWorkers(1)
try:
    job = Job("model", pair, ("key",), ("text",), {"domain": "", "temperature": 0.0, "top_p": 1.0})
    print(*workers.submit(job).result().faults)
finally:
    workers.close()
"""


def test_the_script_that_starts_workers_runs_once(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.stdout, done.returncode) == ("script __main__\nkey\n", 0), done.stderr
