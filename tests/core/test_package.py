"""The package as it is installed: nothing of it may need the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_installed_package_plans_and_decodes_without_the_checkout(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*build, str(tmp_path), str(ROOT)], check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("sequoia_studio-*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert "sequoia = sequoia_core.command_line.main:run" in next(
            files.read(name).decode() for name in files.namelist() if name.endswith("entry_points.txt")
        )
        files.extractall(tmp_path / "site")

    def run(*arguments: str) -> dict:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        code = "import sequoia_core.command_line.main as m; print(m.__file__); m.run()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        where, result = done.stdout.splitlines()
        assert where.startswith(str(tmp_path))
        return json.loads(result)

    vector = tmp_path / "site" / "sequoia_core" / "assets" / "acceptance" / "demo-t0.json"
    assert run("tree", "--acceptance", str(vector), "--size", "8", "--json")["size"] == 8
    assert len(run("generate", "--prompt", "def f(x):", "--max-new-tokens", "8", "--json")["tokens"]) == 8
