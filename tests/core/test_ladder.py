"""The import ladder, the absence of the app's libraries in the core, and start-up without heavy imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sequoia_core

CORE = Path(sequoia_core.__file__).parent
MODULES = sorted(path.stem for path in CORE.glob("*.py") if not path.stem.startswith("__"))


def ladder() -> dict[str, set[str]]:
    """Read the table in the package's docstring: module -> modules it may import."""
    allowed: dict[str, set[str]] = {}
    for line in (sequoia_core.__doc__ or "").splitlines():
        left, _, right = line.strip().partition("  ")
        names = left.split(", ")
        if not right or not set(names) <= set(MODULES):
            continue
        right = right.strip()
        if right.startswith("all"):
            below = set(MODULES) - set(names) - set(right.removeprefix("all but ").split(", "))
        else:
            below = set() if right == "-" else set(right.split(", "))
        for name in names:
            allowed[name] = below
    return allowed


def imports(module: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((CORE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level == 1:
                found |= {node.module} if node.module else {alias.name for alias in node.names}
            elif node.module and node.module.startswith("sequoia_core"):
                found.add(node.module.split(".")[1] if "." in node.module else "__init__")
    return found


def test_the_ladder_names_every_module():
    assert set(ladder()) == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_ladder_allows(module):
    assert imports(module) <= ladder()[module]


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CORE.parent
    )
    return set(output.stdout.split())


def test_the_core_loads_no_app_or_chart_library():
    everything = "; ".join(f"import sequoia_core.{module}" for module in MODULES)
    assert not loaded_after(everything) & {"streamlit", "plotly", "networkx", "pandas", "matplotlib", "ui", "pages"}


def test_tree_commands_start_without_torch():
    assert "torch" not in loaded_after(
        "import sequoia_core.command_line.commands, sequoia_core.construction, sequoia_core.planning"
    )
    assert "torch" not in loaded_after("from sequoia_core import optimal_tree, AcceptanceVector, HardwareProfile")


def test_public_names_resolve():
    for name in sequoia_core.__all__:
        assert getattr(sequoia_core, name) is not None
    with pytest.raises(AttributeError):
        _ = sequoia_core.nothing
