"""The installed package works without the checkout and without optional libraries."""

import json
import os
import subprocess
import sys

import pytest

from sequoia_core.files.libraries import INSTALL_EXTRAS
from sequoia_core.files.model_names import ASSETS
from tests.commands import PROFILE, VECTOR, check_no_torch, without

TABLE = f"table --acceptance {VECTOR} --max-size 8 --max-depth 2"
NO_TORCH = 'torch is not installed: run pip install "sequoia-studio[decode]"'


@pytest.mark.parametrize(
    "command", [f"tree --acceptance {VECTOR} --size 8", TABLE, f"plan --acceptance {VECTOR} --profile {PROFILE}"]
)
def test_planning_commands_run_without_optional_libraries(command):
    check_no_torch((0, command.split()))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generate --prompt x", f"generate: {NO_TORCH}"),
        ("profile", f"profile: {NO_TORCH}"),
        ("bench --draft none", "draft: found none"),
        ("measure --draft none", "draft: found none"),
        ("profile --guess 0.5 --draft none", "draft: found none"),
    ],
)
def test_commands_name_the_missing_extra(command, message):
    said = check_no_torch((2, command.split()))
    assert said.startswith(f"error: {message}") and said.count("\n") == 1


def test_public_names_name_the_missing_extra():
    code = "import sequoia_core\ntry: sequoia_core.decode\nexcept ImportError as error: print(error)"
    assert without(INSTALL_EXTRAS, code) == f"decode: {NO_TORCH}\n"


@pytest.mark.slow
def test_an_installed_package_works_without_the_checkout(tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*install, site, ASSETS.parent], check=True, capture_output=True)
    (points,) = site.glob("*/entry_points.txt")
    assert (
        "sequoia_extras:EXTRAS" in points.read_text() and (site / "sequoia_extras" / "cpu_kernels" / "lanes.h").exists()
    )

    def run(*arguments: str) -> dict:
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [site / "bin" / "sequoia", *arguments, "--json"]
        return json.loads(
            subprocess.run(command, check=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE).stdout
        )

    vector = site / "sequoia_core" / "assets" / "acceptance" / "demo-t0.json"
    assert run("tree", "--acceptance", str(vector), "--size", "8")["size"] == 8
    assert len(run("generate", "--prompt", "def f(x):", "--max-new-tokens", "8")["tokens"]) == 8
