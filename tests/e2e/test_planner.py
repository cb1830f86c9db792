"""From a scenario to a reason: a machine that nothing was measured on, a shape taken from the map, a run explained."""

import pytest

from .browser import LONG_MS, choose_option, go, metric, settle

PLACE_OF_SHAPE = """([n, d]) => {
    const plot = document.querySelector(".st-key-hardware_surface .js-plotly-plot");
    const box = plot.getBoundingClientRect(), layout = plot._fullLayout;
    return [box.x + layout.xaxis._offset + layout.xaxis.d2p(n), box.y + layout.yaxis._offset + layout.yaxis.d2p(d)];
}"""


@pytest.mark.timeout(600)
def test_a_scenario_leads_to_a_shape_a_run_and_its_explanation(page, server):
    page.goto(server)
    settle(page)
    scenarios = page.locator("[class*=st-key-sidebar_scenario] input").first
    choose_option(page, scenarios, "The demo pair on a processor without a matrix unit")
    go(page, "Machine")
    page.get_by_text("Decode something first").first.wait_for()
    page.get_by_text("modelled t(n)").first.wait_for()
    chart = page.locator(".st-key-hardware_surface .js-plotly-plot")
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(1_000)
    place = page.evaluate(PLACE_OF_SHAPE, [8, 4])
    page.mouse.move(*place, steps=5)
    page.get_by_text("n = 8, d = 4").first.wait_for()  # the map says what is under the pointer, then it can be clicked
    page.mouse.click(*place)
    page.get_by_role("button", name="Take the shape you clicked: n = 8, d = 4").click()
    page.get_by_text("The tree is now n = 8, d = 4").first.wait_for()

    go(page, "Tree")
    settle(page)
    assert "n = 8, d = 4" in page.locator("[data-testid=stMain]").inner_text()
    go(page, "Live")
    page.locator(".st-key-decode_start button:not([disabled])").click()
    page.locator(".st-key-decode_stop button:not([disabled])").wait_for(timeout=LONG_MS)
    page.locator(".st-key-decode_start button:not([disabled])").first.wait_for(timeout=LONG_MS)
    settle(page)
    assert metric(page, "Tokens per step")

    go(page, "Machine")
    settle(page)
    told = page.locator("[data-testid=stMain]").inner_text()
    assert "are not of this pair on this machine" in told
    assert "speedup, " in told or "did what was predicted" in told
