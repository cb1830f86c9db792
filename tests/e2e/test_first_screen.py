"""Each design page shows its picture where it opens: on the first screen, beside what changes it."""

from __future__ import annotations

import pytest

from .browser import settle

VISIBLE = 0.75  # share of the picture's height that must be on the screen


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("link", "picture", "controls"),
    [
        ("tree", "tree_picture", ("vector", "n", "depth", "tree_best", "tree_color", "tree_hide")),
        ("tree?n=64&depth=24", "tree_picture", ("tree_hide",)),  # the tallest that the sliders give
        ("hardware", "hardware_surface", ("hardware_way", "hardware_shipped", "hardware_3d", "hardware_paper")),
        ("robustness", "robustness_tokens", ("robustness_shown",)),
        ("server", "server_speed", ("server_way",)),
        ("regret", "regret_matrix", ("regret_vectors", "regret_n", "regret_d")),
        ("acceptance", "acceptance_ranks", ("acceptance_way", "acceptance_choice", "acceptance_compare")),
    ],
)
def test_the_picture_and_its_controls_are_on_the_first_screen(link, picture, controls, page, server) -> None:
    page.goto(f"{server}/?warm=1")  # the app itself first: a cold deep link makes Streamlit look for files that are not
    settle(page)
    page.goto(f"{server}/{link}")
    settle(page)
    page.locator(f".st-key-{picture} .js-plotly-plot .main-svg").first.wait_for()
    screen = page.viewport_size
    assert screen == {"width": 1280, "height": 900}
    assert page.get_by_test_id("stSidebarNav").is_visible()  # the sidebar takes its width
    box = page.locator(f".st-key-{picture} .js-plotly-plot").bounding_box()
    assert 0 <= box["x"] and box["x"] + box["width"] <= screen["width"]
    assert box["height"] >= 300 and box["y"] + VISIBLE * box["height"] <= screen["height"], box
    for key in controls:
        place = page.locator(f".st-key-{key}").bounding_box()
        assert 0 <= place["y"] and place["y"] + place["height"] <= screen["height"], (key, place)
    figures = [metric.bounding_box() for metric in page.get_by_test_id("stMetric").all()]
    assert any(figure["y"] + figure["height"] <= screen["height"] for figure in figures)
