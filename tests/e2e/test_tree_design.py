"""Designing a tree in Chromium: upload a vector, edit it, design, compare, export, bring the file back."""

import json

import pytest

from .browser import both_themes, choose_option, go, metric, number, open_section, settle


def pick(page, key: str, option: str) -> None:
    """Pick an option of the select box with this key; the list shows only part of itself, typing narrows it."""
    choose_option(page, page.locator(f".st-key-{key} input"), option, typed=option)


def write_size(page, size: int) -> None:
    page.locator(".st-key-n input").fill(str(size))
    page.locator(".st-key-n input").press("Enter")
    settle(page)


def write_probability(page, row: int, value: str) -> None:
    """Change one number of the table; it is a canvas, so cells are found by where they are."""
    apply = page.get_by_role("button", name="Use the edited values")
    for _ in range(4):
        grid = page.get_by_test_id("stDataFrame").first
        grid.scroll_into_view_if_needed()
        page.wait_for_timeout(1_000)  # the expander unfolds
        box = grid.bounding_box()
        page.mouse.dblclick(box["x"] + 0.7 * box["width"], box["y"] + 35 * (row + 1) + 17)
        page.wait_for_timeout(500)
        page.keyboard.press("Control+A")
        page.keyboard.type(value, delay=80)
        page.keyboard.press("Enter")
        settle(page)
        if apply.is_enabled():
            return
    raise AssertionError("the table did not take the number")


@pytest.mark.timeout(600)
def test_upload_edit_design_compare_export_and_import(page, server, shot, tmp_path):
    page.goto(server)
    settle(page)
    go(page, "Draft")
    own = tmp_path / "own.csv"
    own.write_text("rank,prob\n1,0.62\n2,0.05\n3,0.11\n4,0.04\n")
    page.locator(".st-key-acceptance_way").get_by_text("Upload", exact=True).click()
    settle(page)
    page.locator('input[type="file"]').set_input_files(own)
    page.get_by_text("own.csv: 4 ranks in use").wait_for()
    settle(page)
    assert "62.0%" in metric(page, "First choice accepted")

    page.get_by_text("Edit the numbers").click()
    write_probability(page, row=0, value="0.55")
    page.get_by_role("button", name="Use the edited values").click()
    page.get_by_text("edited by hand, from: your file own.csv").first.wait_for()
    settle(page)
    assert "55.0%" in metric(page, "First choice accepted")
    page.get_by_text("Isotonic", exact=True).click()
    page.get_by_text("isotonic regression").first.wait_for()
    settle(page)
    page.mouse.wheel(0, -5_000)
    both_themes(page, shot, "acceptance", height=1_450)
    page.locator(".st-key-acceptance_smoothing").get_by_text("None", exact=True).click()
    settle(page)
    page.get_by_text("not smoothed").first.wait_for(state="detached")

    go(page, "Tree")
    assert page.locator(".st-key-vector input").input_value() == "edited"
    write_size(page, 24)
    slider = page.locator(".st-key-depth").get_by_role("slider")
    slider.focus()
    while (now := int(slider.input_value())) != 6:
        slider.press("ArrowRight" if now < 6 else "ArrowLeft")
    settle(page)
    page.get_by_text("n = 24, d = 6").first.wait_for()
    assert "n=24" in page.url and "depth=6" in page.url
    designed = number(page, "Expected tokens per step")

    open_section(page, "Compare")
    pick(page, "against", "Best first")  # rank 3 beats rank 2, so growing by the next likely node misses some
    assert number(page, "The other tree") <= designed
    assert "nodes" in metric(page, "It adds")
    page.locator(".st-key-compare_here .js-plotly-plot").wait_for()

    open_section(page, "Export")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download tree.json").click()
    saved = tmp_path / "tree.json"
    download.value.save_as(saved)
    exported = json.loads(saved.read_text())
    assert len(exported["parents"]) == 24 and abs(exported["expected_tokens"] - designed) < 0.01

    open_section(page, "Compare")
    page.locator(".st-key-tree_file input[type=file]").set_input_files(saved)
    page.get_by_text("the imported tree is optimal").wait_for()
    settle(page)
    assert f"{designed:.2f}" in metric(page, "Imported tree")
    pick(page, "against", "Imported tree")
    assert "0 nodes" in metric(page, "It adds") and "0 nodes" in metric(page, "It drops")
    write_size(page, 25)  # away from it, and back by the file
    page.get_by_text("n = 25, d = 6").first.wait_for()
    settle(page)
    page.get_by_role("button", name="Use the imported tree").click()
    page.get_by_text("your file tree.json, n = 24, d = 6").first.wait_for()
    settle(page)


NODES = ".st-key-tree_picture .scatterlayer .trace:has(path.point)"


def click_on(page, mark) -> None:
    """Click what plotly draws, which clicks what it hovers."""
    mark.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    box = mark.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    page.wait_for_timeout(500)
    page.mouse.click(x, y)


@pytest.mark.timeout(600)
def test_a_large_tree_can_be_read_node_by_node(page, server, shot):
    page.goto(f"{server}/?warm=1")  # the app itself first: a cold deep link makes Streamlit look for files that are not
    settle(page)
    page.goto(f"{server}/tree?vector=llama3-70b-8b-cnn&n=128&depth=9&tree_section=Compare&against=Independent+chains")
    settle(page)
    page.locator(".st-key-tree_picture .js-plotly-plot .scatterlayer").first.wait_for()
    both_themes(page, shot, "tree", height=1_500)
    page.locator(".st-key-tree_picture .plotly .nsewdrag").first.wait_for()
    points = page.locator(NODES).first.locator("path.point")
    assert points.count() == 128
    click_on(page, points.nth(1))
    page.get_by_text("Node 1", exact=True).first.wait_for()
    settle(page)
    page.get_by_role("button", name="Fold up").click()
    page.get_by_role("button", name="Unfold all").wait_for()  # below the picture: it is drawn again by then
    settle(page)
    assert page.locator(NODES).first.locator("path.point").count() < 128
    open_section(page, "One tree for all?")
    page.locator(".st-key-regret_matrix .js-plotly-plot").wait_for()
    both_themes(page, shot, "regret")
    page.goto(f"{server}/tree?n=16&depth=6")
    settle(page)
    texts = page.locator(".st-key-tree_picture .annotation")
    texts.nth(15).wait_for()
    click_on(page, texts.nth(2))  # a text is clicked like its node
    page.get_by_text("Node 2", exact=True).first.wait_for()
