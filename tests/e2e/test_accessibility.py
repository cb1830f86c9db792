"""axe-core finds no fault by WCAG 2 A and AA on any page in either theme, except in disabled widgets."""

from pathlib import Path

import pytest

from tests.e2e.browser import point_at, settle
from tests.served_app import ROOT
from ui.runs.run_files import load_run
from ui.token_tree.standalone import run_to_html

PAGES = sorted((ROOT / "pages").glob("*.py"))
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
INACTIVE = """selector => {
    const widget = document.querySelector(selector)?.closest(".stElementContainer");
    return Boolean(widget?.querySelector("label") && widget.querySelector("[disabled], [aria-disabled=true]"));
}"""  # WCAG 1.4.3 requires no contrast of disabled widgets, of which axe recognises only some


def is_ours(page, rule: str, selector: str) -> bool:
    """Return whether a fault is not in a disabled widget."""
    return not (rule == "color-contrast" and page.evaluate(INACTIVE, selector))


def serious_faults(page) -> list[str]:
    """Return rule, element and description of faults that axe-core finds."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{fault['id']}: {' '.join(map(str, node['target']))[-160:]}: {' '.join(node['failureSummary'].split())}"
        for fault in Axe().run(page, options=RULES).response["violations"]
        for node in fault["nodes"]
        if is_ours(page, fault["id"], node["target"][-1])
    ]


def no_serious_faults(page) -> None:
    page.get_by_text("Checking the speed").first.wait_for(state="detached")  # then the page is drawn again
    page.wait_for_timeout(1_500)
    faults = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_500)  # charts are drawn after the script has ended
        faults += [f"{scheme}: {fault}" for fault in serious_faults(page)]
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_have_no_serious_faults(path: Path, page, server) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{server}/{'' if path.stem == 'overview' else path.stem}")
    settle(page)
    no_serious_faults(page)


def test_a_run_saved_as_a_page_has_no_serious_faults(page, tmp_path) -> None:
    path = tmp_path / "run.html"
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    path.write_bytes(run_to_html(run, title="A run", figures={"Tokens per step": "5.33"}, settings="greedy"))
    page.emulate_media(reduced_motion="reduce")
    page.goto(path.as_uri())
    point_at(page, state="accepted")
    no_serious_faults(page)
