"""The core works without optional packages, or without one of them: tests, commands and pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = sorted(path.parent.name for path in ROOT.glob("sequoia_extras/*/__init__.py"))
# Python imports this at start-up, also in subprocesses of tests; it hides the absent packages.
SITE = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = any(f"{{name}}.".startswith(f"{{each}}.") for each in {absent})
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def needed_by(name: str) -> list[str]:
    """Return the full names of an optional package and its dependents."""
    from .test_ladder import packages_below

    gone = {f"sequoia_extras.{name}"}
    for package, below in packages_below().items():  # dependencies come first
        if gone & below:
            gone.add(package)
    return sorted(gone)


@pytest.fixture
def python(tmp_path):
    """Run Python in the checkout without some packages, by default without all, and return its output."""

    def run(*arguments: str, absent=("sequoia_extras",)) -> str:
        (tmp_path / "sitecustomize.py").write_text(SITE.format(absent=absent))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    return run


def test_the_extras_cannot_be_imported(python):
    assert python("-c", "from importlib.util import find_spec; print(find_spec('sequoia_extras'))") == "None\n"


@pytest.mark.parametrize(
    "command",
    [
        "tree --acceptance assets/acceptance/demo-t0.json --size 8",
        "table --acceptance assets/acceptance/demo-t0.json --max-size 8 --max-depth 4",
        "plan --acceptance assets/acceptance/demo-t0.json --profile assets/profiles/cpu-2core.json",
        "generate --prompt x --max-new-tokens 4",
        "measure --help",
        "profile --help",
        "bench --help",
    ],
)
def test_core_commands_run(command, python):
    python("-m", "sequoia_core", *command.split())


@pytest.mark.timeout(1800)  # on a busy machine
@pytest.mark.parametrize("tests", ["tests/app/test_pages.py", pytest.param("tests/core", marks=pytest.mark.slow)])
def test_core_tests_pass(tests, python):
    ours = "--deselect=tests/core/test_core_alone.py"
    python("-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow and not gpu", tests, ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTRAS)
def test_pages_open_without_a_package_and_its_dependents(name, python):
    gone = needed_by(name)
    code = "import sequoia_extras; from sequoia_core.files.extras import installed; print(len(installed()))"
    assert python("-c", code, absent=gone) == f"{len(EXTRAS) - len(gone)}\n"
    python("-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "tests/app/test_pages.py", absent=gone)
