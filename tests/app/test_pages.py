"""Every page runs alone and through the router."""

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
    on_disk = {path.stem for path in (ROOT / "pages").glob("*.py")}
    assert {page.script for page in menu.PAGES} == on_disk
    assert {script for script, _ in menu.OLD_LINKS.values()} <= on_disk


def check(page: AppTest) -> None:
    settled(page)
    assert len(page.title) == 1 and not page.error
    sidebar = " ".join(element.value for element in [*page.markdown, *page.caption])
    assert "Demo pair" in sidebar and "idle" in sidebar
    widgets = [element for kind in WIDGETS for element in page.get(kind)]
    assert [element.label for element in widgets if element.key is None] == [], "tests and links address widgets by key"


@pytest.mark.sample(2, cover=False)
@BY_NAME
def test_pages_run_through_the_router(path: Path, assets: Path) -> None:
    app = settled(AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_SEC).run())
    check(app.switch_page(str(path.relative_to(ROOT))).run())


@BY_NAME
def test_pages_run_without_shipped_files(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "ASSETS", tmp_path)
    open_page(path.stem)


@pytest.mark.sample(2, cover=False)
@BY_NAME
def test_every_section_opens_with_the_shipped_files(path: Path) -> None:
    check(first := open_page(path.stem))
    for container in first.get("tab_container"):
        for tab in container.children.values():
            open_page(path.stem, **{container.proto.tab_container.query_param_key: tab.label})


def test_a_link_to_a_missing_page_redirects_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(menu, "MENU", [page for page in menu.MENU if page.script != "exact"])
    opened = []
    monkeypatch.setattr(menu.st, "switch_page", lambda page, **query: opened.append(page))
    for link in ("robustness", "runs"):
        menu._redirect_to(*menu.OLD_LINKS[link])()
    assert opened == ["pages/overview.py", "pages/race.py"]


def test_the_app_injects_no_html() -> None:
    for path in (*PAGES, *(ROOT / "ui").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        assert "unsafe_allow_html" not in source, path
        assert source.count("st.html(") == (path.name == "page_setup.py"), path


def test_app_modules_import_only_from_lower_layers() -> None:
    """The layers are listed in the docstring of `ui`."""
    layers = [line.split(maxsplit=1)[1].split(", ") for line in ui.__doc__.splitlines() if line.startswith("    ")]
    known = {name: layer for layer, names in enumerate(layers) for name in names}
    for path in (ROOT / "ui").rglob("[!_]*.py"):
        home = path.relative_to(ROOT / "ui").with_suffix("").parts[0]
        for found in re.findall(r"^\s*(?:from ui\.(\w+)|from ui import (.+))", path.read_text(), re.M):
            for below in "".join(found).split(", "):
                assert below == home or known[below] < known[home], f"{path}: found an import of ui.{below}"
