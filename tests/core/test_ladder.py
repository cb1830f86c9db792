"""Imports follow the order in the docstrings, and start-up imports no heavy libraries."""

import ast
from functools import cache
from pathlib import Path

import pytest

import sequoia_core
from sequoia_core.files.extras import has
from sequoia_core.files.libraries import INSTALL_EXTRAS
from tests.commands import without

ROOT = Path(sequoia_core.__file__).parents[1]
PARTS = ("sequoia_core", "sequoia_extras")
PACKAGES = sorted(f"{path.parts[-3]}.{path.parts[-2]}" for part in PARTS for path in ROOT.glob(f"{part}/*/__init__.py"))
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for part in PARTS
    for path in sorted(ROOT.glob(f"{part}/*/**/*.py"))
    if path.name != "__init__.py"
]


def indented(package: str) -> list[str]:
    """Return the indented lines of a package's docstring without importing it."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
    return [line.strip() for line in (ast.get_docstring(ast.parse(source)) or "").splitlines() if line[:4] == "    "]


@cache
def packages_below() -> dict[str, set[str]]:
    """Parse the tables in the docstrings of core and extras: package -> packages it may import."""
    allowed: dict[str, set[str]] = {}
    for part in PARTS:
        for line in indented(part):
            left, _, right = line.partition("  ")
            names = [] if right.strip() == "-" else right.strip().split(", ")
            allowed[f"{part}.{left}"] = {f"{part}.{name}" for name in names}
    core = {package for package in allowed if package.startswith("sequoia_core.")}
    return {package: below if package in core else below | core for package, below in allowed.items()}


@cache
def ladder(package: str) -> list[str]:
    """Return the modules in a package's docstring; each may import the earlier ones."""
    return [name for line in indented(package) for name in line.rstrip(",").split(", ")]


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports(module: str) -> set[str]:
    """Return the modules of core and extras that a module imports, or packages if it imports through one."""
    folder = module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else base for name in names}
    found = {name for name in found if name.split(".")[0] in PARTS}
    assert found.isdisjoint(PARTS), f"{module}: found an import through the package, expected the module"
    return found


def test_docstrings_list_every_package_and_module():
    gone = packages_below().keys() - set(PACKAGES)
    assert set(PACKAGES) <= packages_below().keys() and all(name.startswith("sequoia_extras.") for name in gone)
    above: set[str] = set()
    for package, below in packages_below().items():
        assert below <= above, f"{package} may import only packages above it in the table"
        above.add(package)
    assert sorted(f"{package}.{name}" for package in PACKAGES for name in ladder(package)) == sorted(MODULES)


def forbidden(module: str) -> set[str]:
    """Return the imports of a module that the docstrings do not allow."""
    package = package_of(module)
    order = [f"{package}.{name}" for name in ladder(package)]
    allowed = set(order[: order.index(module)])
    below = packages_below()[package]
    return {name for name in imports(module) if name not in allowed and package_of(name) not in below}


def test_modules_import_only_what_docstrings_allow():
    assert {module: found for module in MODULES if (found := forbidden(module))} == {}


@pytest.mark.slow
def test_the_core_imports_no_app_or_chart_library():
    everything = "; ".join(f"import {module}" for module in MODULES)
    without(["streamlit", "plotly", "networkx", "pandas", "matplotlib", "ui", "pages"], everything)


def test_planning_imports_no_optional_library():
    free = ("acceptance", "files", "planning", "trees")
    plain = [module for module in MODULES if module.startswith(tuple(f"sequoia_core.{name}." for name in free))]
    if has("servers"):
        plain += [m for m in MODULES if m.startswith("sequoia_extras.servers.")]
    plain.remove("sequoia_core.files.parquet_reading")
    code = "from sequoia_core import optimal_tree, AcceptanceVector, HardwareProfile"
    without(INSTALL_EXTRAS, "; ".join([code, *(f"import {module}" for module in plain)]))


@pytest.mark.parametrize("start", ["ui.page_setup", "sequoia_core.command_line.main"])
def test_the_spin_count_is_set_before_torch_is_imported(start):
    """PyTorch reads the variable at import."""
    code = f"import os; os.environ.pop('GOMP_SPINCOUNT', 0); import {start}"
    without(["torch"], f"{code}; assert os.environ['GOMP_SPINCOUNT'] == '20000'")
