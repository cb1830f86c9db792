"""Print which tests CI runs in full: "all", or those of changed packages; the reason goes to stderr.

The default tests always run. Slow tests run for packages that changed since the last commit known to pass CI: the
commit where this branch left the remote's main branch; on main itself, the one that `.ci/passed` names, or else the
previous release tag. If there is none of them, all slow tests run.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = [f"tests/{path.parent.name}/{path.name}" for path in sorted((ROOT / "tests").glob("*/test_*.py"))]
CHECKS = [path for path in CHECKS if path.startswith(("tests/core", "tests/extras"))]  # These cover all packages.
APP = ["tests/app", "tests/e2e"]
ELSEWHERE = {  # first part of a changed path -> tests
    **dict.fromkeys(("ui", "pages", "app.py", ".streamlit"), APP),
    **dict.fromkeys(("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "scripts"), CHECKS),
    "benchmarks": [*CHECKS, *(f"tests/extras/{name}" for name in ("cuda_graphs", "hardware_models", "servers"))],
    "examples": APP[:1],
}


def importers(extra: str) -> list[str]:
    """Return the extras that may import this extra, according to the docstring of `sequoia_extras`."""
    table = ast.get_docstring(ast.parse((ROOT / "sequoia_extras" / "__init__.py").read_text())) or ""
    rows = re.findall(r"^    (\w+)  +(.+)$", table, re.MULTILINE)
    return [name for name, needed in rows if extra in needed.split(", ")]


def slow_tests(path: str) -> "list[str] | None":
    """Return the tests to run in full for a changed file; None if it may affect all of them."""
    if path == ".ci/passed":
        return []
    first, *rest = path.split("/")
    packages, tests = [rest[0]] if len(rest) > 1 else [], Path("tests")
    if first == "tests":
        if rest[0] in ("app", "e2e"):
            return [f"tests/{rest[0]}"]
        if rest[0] not in ("core", "extras"):
            return None
        if path in CHECKS:
            return [path]
        packages, tests = rest[1:-1][:1], tests / rest[0]
        found = []
    elif first in ("sequoia_core", "sequoia_extras"):
        tests, found = tests / first[len("sequoia_") :], CHECKS
        packages += importers(packages[0]) if packages and first == "sequoia_extras" else []
    else:
        return ELSEWHERE.get(first)
    folders = [tests / name for name in packages]
    if not folders or not all((ROOT / folder).is_dir() for folder in folders):
        return None  # The file is not in a package, or its package was deleted.
    return [*found, *map(str, folders)]


def git(*arguments: str) -> "str | None":
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def last_passed() -> "str | None":
    """Return the last commit known to pass CI; None if there is none."""
    left = git("merge-base", "HEAD", "origin/main")
    if left and left != git("rev-parse", "HEAD"):
        return left
    named = ROOT / ".ci/passed"
    passed = named.read_text().strip() if named.is_file() else None
    if passed and git("merge-base", "--is-ancestor", passed, "HEAD") is not None:
        return passed
    return git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD~1")


def select() -> "tuple[str, str]":
    """Return the tests to run and the reason."""
    since = last_passed()
    changed = git("diff", "--name-only", "--no-renames", since) if since else None
    if changed is None:
        return "all", "no earlier commit is known to pass CI"
    chosen = set()
    for path in changed.splitlines():
        tests = slow_tests(path)
        if tests is None:
            return "all", f"{path} changed since {since}"
        chosen.update(tests)
    return " ".join(sorted(chosen)), f"for changes since {since}"


if __name__ == "__main__":
    tests, reason = select()
    print(f"Slow tests: {tests or 'none'} ({reason})", file=sys.stderr)
    print(tests)
