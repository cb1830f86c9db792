"""Rooms and ladders as the docstrings state them, no app library in the core, start-up without heavy imports."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sequoia_core

CORE = Path(sequoia_core.__file__).parent
ROOMS = sorted(path.parent.name for path in CORE.glob("*/__init__.py"))
MODULES = [".".join(path.relative_to(CORE).with_suffix("").parts) for path in sorted(CORE.glob("*/**/*.py"))]
MODULES = [module for module in MODULES if not module.endswith("__init__")]


def rooms_below() -> dict[str, set[str]]:
    """Read the table in the package's docstring: room -> rooms it may import."""
    allowed: dict[str, set[str]] = {}
    for line in (sequoia_core.__doc__ or "").splitlines():
        left, _, right = line.strip().partition("  ")
        if line.startswith("    ") and right:
            allowed[left] = set() if right.strip() == "-" else set(right.strip().split(", "))
    return allowed


def ladder(room: str) -> list[str]:
    """Read the modules in a room's docstring, each of which may import those before it."""
    lines = (importlib.import_module(f"sequoia_core.{room}").__doc__ or "").splitlines()
    return [name for line in lines if line.startswith("    ") for name in line.strip().rstrip(",").split(", ")]


def imports(module: str) -> tuple[set[str], set[str]]:
    """Return the rooms that a module imports from, and the modules of its own room."""
    room, _, name = module.partition(".")
    package = ["sequoia_core", *module.split(".")[:-1]]
    rooms, modules = set(), set()
    for node in ast.walk(ast.parse((CORE / f"{module.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            found = [
                inner if inner.removeprefix("sequoia_core.") in MODULES else base
                for inner in (f"{base}.{alias.name}" for alias in node.names)
            ]
        else:
            continue
        assert "sequoia_core" not in found, f"{module}: found an import through the package, expected the module"
        for full in (full.removeprefix("sequoia_core.") for full in found if full.startswith("sequoia_core.")):
            other, _, inside = full.partition(".")
            if other == room:
                modules.add(inside)
            else:
                rooms.add(other)
    return rooms, modules


def test_every_room_and_module_is_on_its_ladder():
    order = "files native design models decoding studies sweeps servers command_line"
    assert list(rooms_below()) == order.split() and sorted(rooms_below()) == ROOMS
    above: set[str] = set()
    for room, below in rooms_below().items():
        assert below <= above, f"{room} may import only what stands above it in the table"
        above.add(room)
    assert sorted(f"{room}.{name}" for room in ROOMS for name in ladder(room)) == sorted(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_ladders_allow(module):
    room, _, name = module.partition(".")
    rooms, modules = imports(module)
    order = ladder(room)
    assert rooms <= rooms_below()[room]
    assert modules <= set(order[: order.index(name)])


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CORE.parent
    )
    return set(output.stdout.split())


@pytest.mark.slow
def test_the_core_loads_no_app_or_chart_library():
    everything = "; ".join(f"import sequoia_core.{module}" for module in MODULES)
    assert not loaded_after(everything) & {"streamlit", "plotly", "networkx", "pandas", "matplotlib", "ui", "pages"}


def test_designing_needs_no_torch():
    plain = [module for module in MODULES if module.startswith(("design.", "files.", "servers."))]
    plain += ["decoding.growing.recipes", "decoding.growing.marginal_gains", "command_line.main"]
    design = "; ".join(f"import sequoia_core.{module}" for module in plain if module != "servers.check")
    assert "torch" not in loaded_after(design)
    assert "torch" not in loaded_after("from sequoia_core import optimal_tree, AcceptanceVector, HardwareProfile")


@pytest.mark.parametrize("start", ["ui.page_setup", "sequoia_core.command_line.main"])
def test_waiting_threads_soon_sleep_in_app_and_command(start):
    """PyTorch reads the variable when it is imported, so it must be there before."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    code = f"import sys, os, {start}; assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=CORE.parent
    )
    assert done.stdout.strip() == "20000", done.stderr
