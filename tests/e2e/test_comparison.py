"""Which draft pays, in a browser: the map where the page opens, a cell by clicking it, its tree; in both themes."""

from __future__ import annotations

import pytest

from sequoia_core.sweeps.results import Results
from tests.core.sweeps.hand_made import decoded, measured

from .browser import both_themes, settle

TEXTS = {"code": [1, 1, 2, 1, 1, 0, 1, 1] * 4, "edits": [0, 2, 1, 0, 3, 1, 1, 0] * 4}


@pytest.fixture
def folder(tmp_path):
    """Five drafters at four temperatures on two kinds of text, as many as ship with the app."""
    rows = []
    for temperature in (0.0, 0.3, 0.6, 1.0):
        for domain, ranks in TEXTS.items():
            for number, prompt in enumerate("abc"):
                at = {"temperature": temperature, "domain": domain}
                rows.append(decoded(prompt, [4, 1, 3], **at))
                for pair in ("small draft", "large draft"):
                    rows.append(measured(prompt, ranks[number:], pair=pair, **at))
                    rows.append(decoded(prompt, [4, 2, 5], both=True, pair=pair, **at))
    Results(tmp_path / "sweep").add(rows)
    return tmp_path / "sweep"


@pytest.mark.timeout(600)
def test_a_sweep_is_a_map_whose_cells_open(folder, page, server, shot) -> None:
    page.goto(f"{server}/?warm=1")
    settle(page)
    page.goto(f"{server}/draft?draft_section=Which+draft%3F&compare_way=Folder&compare_shown=Tokens+per+step")
    settle(page)
    page.locator(".st-key-compare_folder input").fill(str(folder))
    page.keyboard.press("Enter")
    page.locator(".st-key-compare_map .js-plotly-plot .main-svg").first.wait_for()
    settle(page)
    for key in ("compare_way", "compare_shown", "compare_hardware", "compare_answer", "compare_map"):
        box = page.locator(f".st-key-{key}").bounding_box()
        assert box["x"] + box["width"] <= 1280 and box["y"] + box["height"] <= 900, (key, box)
    both_themes(page, shot, "compare", height=1500)
    cells = page.locator(".st-key-compare_map .scatterlayer .trace").last.locator("path.point")
    assert cells.count() == 5 * 3
    box = cells.nth(2).bounding_box()  # the first drafter, on the third kind of text
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)  # plotly clicks what it hovers
    page.wait_for_timeout(500)
    page.mouse.click(x, y)
    page.wait_for_url("**compare_setting=T+%3D+0%2C+*")
    settle(page)
    page.get_by_role("button", name="Use this vector").click()
    page.get_by_role("link", name="Open its tree").click()
    page.locator(".st-key-tree_picture .js-plotly-plot").wait_for()
    settle(page)
    assert "of a sweep" in page.locator("body").inner_text()
