"""Every page on disk runs alone, as a cold link does, and through the router; a new page is found by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import PAGES, ROOT, TIMEOUT_SEC, settled
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
def test_alone(path: Path, assets: Path) -> None:
    check(AppTest.from_file(str(path), default_timeout=TIMEOUT_SEC).run())


@BY_NAME
def test_through_the_router(path: Path, assets: Path) -> None:
    app = settled(AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_SEC).run())
    check(app.switch_page(str(path.relative_to(ROOT))).run())


@BY_NAME
def test_alone_with_what_really_ships(path: Path) -> None:
    check(AppTest.from_file(str(path), default_timeout=TIMEOUT_SEC).run())


@BY_NAME
def test_with_nothing_shipped_it_explains(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "ASSETS", tmp_path)
    settled(AppTest.from_file(str(path), default_timeout=TIMEOUT_SEC).run())


@BY_NAME
def test_state_travels_between_pages(path: Path, assets: Path) -> None:
    page = AppTest.from_file(str(path), default_timeout=TIMEOUT_SEC)
    page.session_state["studio_shape"] = (9, 3)
    settled(page.run())
    assert page.session_state["studio_shape"] == (9, 3)


def test_shipped_vectors_and_profiles_load() -> None:
    for name in shipped.files("acceptance"):
        assert len(shipped.acceptance(name)) >= 1
    for name in shipped.files("profiles"):
        assert shipped.profile(name).max_size >= 2


@BY_NAME
def test_pages_do_not_inject_html(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "unsafe_allow_html" not in source and "st.html" not in source and "use_container_width" not in source


def test_walls_between_folders() -> None:
    """Charts know no page, what pages share knows none either, and no page another's folder."""
    own = {page.stem for page in PAGES} - {"runs"}  # what the page of runs shows, others show too
    reads = {
        path: {name.split(".")[1] for name in re.findall(r"^\s*(?:from|import) (ui\.\w+)", path.read_text(), re.M)}
        & own
        for path in [*PAGES, *(ROOT / "ui").rglob("*.py")]
    }
    assert any(reads.values())
    for path, found in reads.items():
        home = path.stem if path in PAGES else path.relative_to(ROOT / "ui").parts[0]
        assert found <= {home}, f"{path}: found imports of {sorted(found - {home})}"
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    of_tests = set(re.findall(r"from tests\.(\w+)", scripts))
    assert of_tests <= {"served_app", "pretend_device"}  # which serve both


def test_orange_text_is_left_to_primary_buttons() -> None:
    """The theme writes it white or black, which only a primary button's background makes readable."""
    taken = re.compile(r""":orange\[|color=["']orange|type=["']primary""")
    places = [path for folder in ("pages", "ui") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name for path in places if taken.search(path.read_text())}
    assert found <= {"controls.py"}
