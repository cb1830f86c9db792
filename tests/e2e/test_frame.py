"""The frame around every page: ui/app.css has its effect, which depends on Streamlit's test ids, and links work."""

import pytest

from tests.e2e.browser import LONG_MS, settle

STYLES = {  # selector, with a pseudo-element after a space: property, value
    "[data-testid=stSidebar]": ("width", "200px"),
    "[data-testid=stMainBlockContainer]": ("padding", "10px 32px 64px"),
    "[data-testid=stMainBlockContainer] > div": ("gap", "12px"),
    "[data-testid=stLogoLink]::after": ("content", '"Sequoia Studio"'),
    "[data-testid=stCaptionContainer]": ("opacity", "1"),
    ".st-key-plan_bar button": ("minHeight", "32px"),
    ".modebar-btn[data-title=Zoom]": ("display", "none"),
    ".modebar-btn[data-title^=Download]": ("display", "inline-block"),
    ".modebar-group": ("backgroundColor", "rgb(253, 252, 249)"),
}
STYLE = """([selector, property]) => {
    const [owner, pseudo] = selector.split("::");
    return getComputedStyle(document.querySelector(owner), pseudo && "::" + pseudo)[property];
}"""
RING = "rgb(44, 132, 102) solid 2px"
FOCUSED = """() => {
    const chain = [];
    for (let each = document.activeElement; each && chain.length < 5; each = each.parentElement) chain.push(each);
    const ringed = chain.find(each => getComputedStyle(each).outline.endsWith("solid 2px"));
    return [chain[0].outerHTML.slice(0, 200), ringed?.offsetWidth > 8 && getComputedStyle(ringed).outline];
}"""


@pytest.mark.timeout(300)
def test_the_frame_is_small_and_has_one_focus_ring(page, server) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{server}/tree")
    settle(page)
    page.locator(".modebar-group").first.wait_for(state="attached")
    found = {selector: page.evaluate(STYLE, [selector, name]) for selector, (name, _) in STYLES.items()}
    assert found == {selector: value for selector, (_, value) in STYLES.items()}
    assert page.get_by_role("heading", level=1).bounding_box()["y"] < 130
    for _ in range(25):
        page.keyboard.press("Tab")
        element, ring = page.evaluate(FOCUSED)
        assert ring == RING or "stHeaderActionElements" in element, element
    with page.context.expect_page() as opened:
        page.locator(".st-key-menu").get_by_role("link", name="Start").click(modifiers=["Control"])
    assert opened.value.url.rstrip("/") == server


@pytest.mark.timeout(300)
def test_a_phone_shows_two_figures_a_row_and_no_tool_bar(tabs, server) -> None:
    page = tabs(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page.goto(f"{server}/draft")
    settle(page)
    metrics = page.get_by_test_id("stMetric")
    metrics.nth(2).wait_for(timeout=LONG_MS)
    first, second, third = (metrics.nth(place).bounding_box() for place in range(3))
    assert first["y"] == second["y"] < third["y"] and first["x"] == third["x"]
    page.locator(".modebar-container").first.wait_for(state="attached")
    assert not page.locator(".modebar-container").first.is_visible()
    assert page.get_by_role("button", name="Main menu").bounding_box()["x"] < 360
