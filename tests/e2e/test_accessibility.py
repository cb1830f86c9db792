"""axe-core finds nothing serious on any page in either theme."""

from pathlib import Path

import pytest

from tests.served_app import ROOT
from ui.runs.run_files import load_run
from ui.token_tree.standalone import run_to_html

from .browser import settle

PAGES = sorted((ROOT / "pages").glob("*.py"))
SEVERE = ("serious", "critical")
INACTIVE = """selector => {
    const widget = document.querySelector(selector)?.closest(".stElementContainer");
    return Boolean(widget?.querySelector("label") && widget.querySelector("[disabled], [aria-disabled=true]"));
}"""  # whether an element belongs to a disabled widget: WCAG 1.4.3 asks no contrast of it, axe knows only some


def is_ours(page, rule: str, selector: str) -> bool:
    """Whether a fault is of this app, and not of a disabled widget."""
    return not (rule == "color-contrast" and page.evaluate(INACTIVE, selector))


def serious_faults(page) -> list[str]:
    """Return what axe-core calls serious or critical: the rule, the element, what is wrong with it."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{fault['id']}: {' '.join(map(str, node['target']))[-160:]}: {' '.join(node['failureSummary'].split())}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in SEVERE
        for node in fault["nodes"]
        if is_ours(page, fault["id"], node["target"][-1])
    ]


def no_serious_faults(page) -> None:
    faults = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_500)  # charts are drawn after the script is done
        faults += [f"{scheme}: {fault}" for fault in serious_faults(page)]
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_nothing_serious_in_either_theme(path: Path, page, server) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{server}/{'' if path.stem == 'overview' else path.stem}")
    settle(page)
    no_serious_faults(page)


def test_nothing_serious_in_a_run_saved_as_a_page(page, tmp_path) -> None:
    path = tmp_path / "run.html"
    path.write_bytes(run_to_html(load_run(ROOT / "assets" / "runs" / "recorded.jsonl"), title="A run"))
    page.emulate_media(reduced_motion="reduce")
    page.goto(path.as_uri())
    page.locator(".nodes .accepted").last.click()
    no_serious_faults(page)
