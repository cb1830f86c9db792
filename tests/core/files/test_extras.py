"""Optional packages are imported on first use, and deleted ones provide nothing."""

import importlib
import sys

import pytest

from sequoia_core.files import extras


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Create two packages, of which the second needs the first; each provides a number at the seam "numbers"."""
    for name, needs in (("first", ()), ("second", ("first",))):
        folder = tmp_path / "some_extras" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'NEEDS = {needs}\nPROVIDES = {{"numbers": ["part:NUMBER"]}}\n')
        (folder / "part.py").write_text(f"NUMBER = {len(name)}\n")
    (tmp_path / "some_extras" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extras, "_registered", {})
    extras.provided.cache_clear()
    extras.register(["some_extras.first", "some_extras.second"])
    yield tmp_path / "some_extras"
    monkeypatch.undo()
    extras.installed.cache_clear()
    extras.provided.cache_clear()
    for name in [name for name in sys.modules if name.startswith("some_extras")]:
        del sys.modules[name]


def test_provided_attributes_are_imported_lazily_and_in_order(packages):
    assert extras.installed()[:2] == ("some_extras.first", "some_extras.second")
    assert extras.has("second") and not extras.has("third")
    assert "some_extras.first.part" not in sys.modules
    assert extras.provided("numbers") == (5, 6) and extras.provided("letters") == ()


def test_deleted_packages_and_their_dependents_provide_nothing(packages):
    for path in (packages / "first").iterdir():
        path.unlink()  # the folder may remain with Python's cache
    importlib.invalidate_caches()
    assert not extras.has("first") and not extras.has("second")
    assert extras.provided("numbers") == ()


def test_late_registration_is_refused(packages):
    extras.provided("numbers")
    extras.register(["some_extras.first"])  # already registered
    with pytest.raises(ImportError, match=r"some_extras\.third: imported after the core"):
        extras.register(["some_extras.third"])


def test_errors_in_a_package_are_raised(packages):
    (packages / "first" / "part.py").write_text("")
    with pytest.raises(AttributeError):
        extras.provided("numbers")


def test_a_missing_library_is_raised(packages):
    (packages / "first" / "part.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        extras.provided("numbers")
