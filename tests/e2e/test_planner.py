"""Planning for other machines: a vector of one's own on GPUs, and a shape chosen on the map of a modelled machine."""

import re
import time

import pytest

from tests.e2e.browser import go, in_plan, metric, settle

PLACE_OF_SHAPE = """([n, d]) => {
    const plot = document.querySelector(".st-key-hardware_surface .js-plotly-plot");
    const box = plot.getBoundingClientRect(), layout = plot._fullLayout;
    return [box.x + layout.xaxis._offset + layout.xaxis.d2p(n), box.y + layout.yaxis._offset + layout.yaxis.d2p(d)];
}"""


@pytest.mark.timeout(300)
def test_a_vector_of_ones_own_is_planned_for_two_gpus_in_four_clicks(page, server, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("rank,prob\n1,0.62\n2,0.12\n3,0.05\n")
    page.goto(server)
    settle(page)
    began = time.monotonic()
    with in_plan(page, "acceptance"):
        page.locator(".st-key-acceptance_file input[type=file]").set_input_files(own)
        page.get_by_text("own.csv is now the current vector (3 ranks)").wait_for()
    for name, chosen in (
        ("A100 80 GB SXM · Llama-2-7b-hf", "modelled for NVIDIA A100"),
        ("H200 · Llama-2-7b-hf", "NVIDIA H200"),
    ):
        with in_plan(page, "machine"):
            page.locator(".st-key-plan_machine").get_by_text(name).click()
            page.locator(".st-key-plan_bar").get_by_text(chosen).first.wait_for()
        said = page.locator(".st-key-plan_bar").inner_text()
        assert "if the acceptance was measured for Llama-2-7b-hf ← llama-68m" in said
        if chosen == "modelled for NVIDIA A100":
            assert time.monotonic() - began < 20
        speedup = re.search(r"\d+\.\d\d×", said)[0]
        go(page, "Machine")
        page.get_by_text("modelled t(n)").or_(page.get_by_text("t(n)")).first.wait_for()
        assert speedup in metric(page, "Best static tree")
        go(page, "Tree")
        assert speedup in metric(page, "Predicted speedup")
        assert page.locator(".st-key-plan_bar").inner_text() == said and "machine=" in page.url


@pytest.mark.timeout(600)
def test_a_shape_is_taken_from_the_map_of_a_modelled_machine(page, server):
    page.goto(server)
    settle(page)
    with in_plan(page, "machine"):
        page.locator(".st-key-plan_machine").get_by_text("AVX-512 · demo target ← demo draft").click()
    go(page, "Machine")
    page.get_by_text("Decode something first").first.wait_for()
    page.get_by_text("modelled t(n)").first.wait_for()
    chart = page.locator(".st-key-hardware_surface .js-plotly-plot")
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(1_000)
    place = page.evaluate(PLACE_OF_SHAPE, [8, 4])
    page.mouse.move(*place, steps=5)
    page.get_by_text("n = 8, d = 4").first.wait_for()  # a point can be clicked once its label is shown
    page.mouse.click(*place)
    page.get_by_role("button", name="Use the clicked shape: n = 8, d = 4").click()
    page.get_by_text("The tree is now n = 8, d = 4").first.wait_for()

    go(page, "Tree")
    settle(page)
    assert "n = 8, d = 4" in page.locator("[data-testid=stMain]").inner_text()
