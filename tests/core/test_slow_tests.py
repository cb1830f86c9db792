"""Which slow tests CI runs for what changed."""

import runpy

import pytest

from sequoia_core.files.model_names import ASSETS

SCRIPT = runpy.run_path(str(ASSETS.parent / "scripts" / "slow_tests.py"))
slow_tests, select, CHECKS = (SCRIPT[name] for name in ("slow_tests", "select", "CHECKS"))


def test_a_change_runs_the_slow_tests_of_its_package_and_of_extras_that_import_it():
    assert slow_tests("sequoia_core/trees/tree.py") == [*CHECKS, "tests/core/trees"]
    assert "tests/extras/draft_heads" in slow_tests("sequoia_extras/cpu_kernels/linear.py")
    assert {*map(slow_tests, ("Makefile", "tests/conftest.py", "sequoia_core/gone/tree.py"))} == {None}


@pytest.mark.parametrize(
    ("left", "tag", "changed", "tests"),
    [
        ("c1", None, "", "all"),
        ("c1", "v1", "ui/menu.js", "tests/app tests/e2e"),
        ("c0", None, "ui/menu.js\nMakefile", "all"),
        ("c0", "v1", "", ""),
    ],
)
def test_changes_count_from_where_the_branch_left_main_or_from_the_release(
    left, tag, changed, tests, monkeypatch, tmp_path
):
    answers = {"rev-parse": "c1", "merge-base": left, "describe": tag, "diff": changed}
    monkeypatch.setitem(select.__globals__, "ROOT", tmp_path)  # it has no .ci/passed
    monkeypatch.setitem(select.__globals__, "git", lambda *call: answers[call[0]])
    assert select()[0] == tests


@pytest.mark.parametrize(("ancestor", "tests"), [("", "tests/app tests/e2e"), (None, "all")])
def test_changes_count_from_the_commit_that_a_file_names(ancestor, tests, monkeypatch, tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "passed").write_text("c0\n")
    answers = {
        "merge-base": None,
        "merge-base --is-ancestor c0 HEAD": ancestor,
        "diff": ".ci/passed\nui/menu.js",
        "describe": None,
    }
    monkeypatch.setitem(select.__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(
        select.__globals__, "git", lambda *call: answers[name if (name := " ".join(call)) in answers else call[0]]
    )
    assert select()[0] == tests
