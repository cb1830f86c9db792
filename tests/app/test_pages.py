"""Every page on disk runs alone, as a cold link does, and through the router; a new page is found by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import ui
from tests.app.conftest import PAGES, ROOT, TIMEOUT_SEC, open_page, settled
from ui import menu
from ui.session import shipped

WIDGETS = (
    "button", "button_group", "checkbox", "file_uploader", "multiselect", "number_input", "radio", "select_slider",
    "selectbox", "slider", "text_area", "text_input", "toggle",
)  # fmt: skip
BY_NAME = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def test_the_menu_names_every_page() -> None:
    assert sorted(page.script for page in menu.MENU) == [path.stem for path in PAGES]
    assert {script for script, _ in menu.OLD_LINKS.values()} <= {path.stem for path in PAGES}


def check(page: AppTest) -> None:
    settled(page)
    assert len(page.title) == 1 and not page.error
    sidebar = " ".join(element.value for element in [*page.sidebar.markdown, *page.sidebar.caption])
    assert "Model pair" in sidebar and "idle" in sidebar
    widgets = [element for kind in WIDGETS for element in page.get(kind)]
    assert [element.label for element in widgets if element.key is None] == [], "tests and links address widgets by key"


@BY_NAME
def test_through_the_router(path: Path, assets: Path) -> None:
    app = settled(AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_SEC).run())
    check(app.switch_page(str(path.relative_to(ROOT))).run())


@BY_NAME
def test_alone_with_what_really_ships(path: Path) -> None:
    check(open_page(path.stem))


@BY_NAME
def test_with_nothing_shipped_it_explains(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "ASSETS", tmp_path)
    open_page(path.stem)


def test_words_and_documents_are_at_hand_on_every_page(assets: Path) -> None:
    page = open_page("tree")
    assert any("**tokens per step**" in element.value for element in page.sidebar.markdown)
    settled(page.button(key="documents").click().run())
    assert {"Sequoia Studio", "Predictions", "Changelog"} <= {*page.selectbox(key="document").options}
    shown = next(element.value for element in page.markdown if element.value.startswith("# Sequoia Studio"))
    assert "](docs/" not in shown and "![" not in shown


@BY_NAME
def test_pages_do_not_inject_html(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "unsafe_allow_html" not in source and "st.html" not in source and "use_container_width" not in source


def floors() -> dict[str, int]:
    """Read the table in the docstring of `ui`: folder or file -> its floor."""
    lines = [line.split(maxsplit=1)[1] for line in (ui.__doc__ or "").splitlines() if line.startswith("    ")]
    return {name: floor for floor, names in enumerate(lines) for name in names.split(", ")}


def test_every_folder_and_file_of_the_app_is_on_its_floor() -> None:
    known = floors()
    modules = [path for path in (ROOT / "ui").rglob("*.py") if path != ROOT / "ui" / "__init__.py"]
    homes = {path: path.relative_to(ROOT / "ui").with_suffix("").parts[0] for path in modules}
    assert {*homes.values()} == {*known}
    for path, home in homes.items():
        for found in re.findall(r"^\s*(?:from ui\.(\w+)|from ui import (.+)|import ui\.(\w+))", path.read_text(), re.M):
            for name in "".join(found).split(", "):
                below = name.split()[0]
                assert below == home or known[below] < known[home], f"{path}: found an import of ui.{below}"
    for path in PAGES:
        of_pages = set(re.findall(r"^\s*from ui\.(\w+)", path.read_text(), re.M)) & {page.stem for page in PAGES}
        assert of_pages <= {path.stem}, f"{path}: found imports of other pages' folders, {sorted(of_pages)}"
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    of_tests = set(re.findall(r"from tests\.(\w+)", scripts))
    assert of_tests <= {"served_app", "pretend_device"}  # which serve both


def test_orange_text_is_left_to_primary_buttons() -> None:
    """The theme writes it white or black, which only a primary button's background makes readable."""
    taken = re.compile(r""":orange\[|color=["']orange|type=["']primary""")
    places = [path for folder in ("pages", "ui") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name for path in places if taken.search(path.read_text())}
    assert found <= {"controls.py"}
