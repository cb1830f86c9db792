"""What is to run on a rented GPU runs on the CPU first: every section, without network and without pydantic."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# such a machine has no pydantic
RUN = "import sys, runpy; sys.modules['pydantic'] = None; runpy.run_path('benchmarks/gpu.py', run_name='__main__')"


def rehearsed(out, *options):
    arguments = ["--rehearse", "--out", str(out), *options]
    code = f"import sys; sys.path.insert(0, 'benchmarks'); sys.argv[1:] = {arguments}; {RUN}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done, json.loads(done.stdout.splitlines()[-1])


def test_every_section_runs_and_is_not_run_again(tmp_path):
    out = tmp_path / "gpu.json"
    done, found = rehearsed(out)
    faults = {name: section["error"] for name, section in found["sections"].items() if "error" in section}
    assert not faults and done.returncode == 0, (faults, done.stderr[-2000:])
    assert found["rehearsal"] and found["torch"] and found["device"]
    assert len(found["sections"]) == 9 and all(section["rows"] for section in found["sections"].values())
    found["sections"]["copies"] = {"error": "out of memory"}
    out.write_text(json.dumps(found))
    again = rehearsed(out, "--sections", "copies,shapes")[1]["sections"]
    assert again["shapes"] == found["sections"]["shapes"] and "rows" in again["copies"]
