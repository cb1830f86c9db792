"""axe-core finds nothing serious on any page in either theme."""

from pathlib import Path

import pytest

from tests.app.conftest import PAGES
from tests.served_app import ROOT
from ui.runs.run_files import load_run
from ui.token_tree.standalone import run_to_html

from .browser import WAYS, go, settle

SEVERE = ("serious", "critical")
LEAST_CONTRAST = 4.5  # to 1, what WCAG 1.4.3 asks of text
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


CONTRAST = """element => {
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
    const rgba = color => {
        context.clearRect(0, 0, 1, 1)
        context.fillStyle = color
        context.fillRect(0, 0, 1, 1)
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data
        return [r, g, b, a / 255]
    }
    const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i])
    const light = color => color.map(value => value / 255)
        .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0)
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
    do texts.nextNode()
    while (texts.currentNode.parentElement.closest("[data-testid=stIconMaterial], [role=img]"))
    const above = []
    for (let each = texts.currentNode.parentElement; each; each = each.parentElement) above.unshift(each)
    const painted = above.map(each => rgba(getComputedStyle(each).backgroundColor))
    const paper = painted.reduce((below, color) => over(color, below), [255, 255, 255])
    const seen = above.reduce((share, each) => share * getComputedStyle(each).opacity, 1)
    const [r, g, b, a] = rgba(getComputedStyle(above.at(-1)).color)
    const [one, other] = [light(over([r, g, b, a * seen], paper)), light(paper)].sort((x, y) => y - x)
    return (one + 0.05) / (other + 0.05)
}"""  # of the first text in an element with what is behind it, also where axe-core does not look: in disabled widgets


def pale(page, selector: str, *, at_least: int) -> list[str]:
    """Return which elements' text is too near to its background in one of the themes, with the contrast."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_500)
        elements = page.locator(selector).all()
        assert len(elements) >= at_least, f"found {len(elements)} of {selector}"
        contrasts = {each.inner_text(): each.evaluate(CONTRAST) for each in elements if each.is_visible()}
        found += [f"{scheme}: {text!r} {value:.2f} to 1" for text, value in contrasts.items() if value < LEAST_CONTRAST]
    return found


@pytest.mark.timeout(300)
def test_disabled_primary_buttons_can_be_read(page, server) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(server)
    settle(page)
    page.get_by_role("button", name="Change pair").click()
    page.get_by_text("No draft: one model alone").click()
    settle(page)
    page.get_by_role("button", name="Use this pair").click()
    page.get_by_text("needs a draft model").first.wait_for()
    page.keyboard.press("Escape")
    disabled = "button[kind^=primary][disabled]"
    faults = pale(page, disabled, at_least=1)
    for name, way in WAYS.items():
        go(page, name)
        page.locator(f".st-key-{way}").get_by_text("Measure", exact=True).click()
        settle(page)
        faults += pale(page, disabled, at_least=1)
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(300)
def test_badges_can_be_read(page, server) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{server}/?warm=1")
    settle(page)
    page.goto(f"{server}/exact?robustness_section=Guarantees")
    settle(page)
    faults = pale(page, ".stMarkdownBadge", at_least=6)
    assert not faults, "\n".join(faults)
