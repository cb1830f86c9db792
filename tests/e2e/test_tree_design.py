"""Designing a tree in the browser: upload a vector, choose a shape, export the tree and import it."""

import json

import pytest

from tests.e2e.browser import both_themes, drawn, go, in_plan, metric, number, open_section, point_at, settle


@pytest.mark.timeout(600)
def test_a_vector_is_uploaded_a_tree_designed_exported_and_imported(page, server, shot, tmp_path):
    page.goto(server)
    settle(page)
    go(page, "Draft")
    own = tmp_path / "own.csv"
    own.write_text("rank,prob\n1,0.62\n2,0.05\n3,0.11\n4,0.04\n")
    with in_plan(page, "acceptance"):
        page.locator(".st-key-acceptance_file input[type=file]").set_input_files(own)
        page.get_by_text("own.csv is now the current vector (4 ranks)").wait_for()
    assert "62.0%" in metric(page, "First choice accepted")

    page.get_by_text("Isotonic", exact=True).click()
    page.get_by_text("isotonic regression").first.wait_for()
    settle(page)
    page.mouse.wheel(0, -5_000)
    both_themes(page, shot, "acceptance", height=1_450)
    page.locator(".st-key-acceptance_smoothing").get_by_text("None", exact=True).click()
    settle(page)
    page.get_by_text("not smoothed").first.wait_for(state="detached")

    go(page, "Tree")
    assert "own.csv" in page.locator(".st-key-plan_acceptance_open").inner_text()
    page.locator(".st-key-n input").fill("24")
    page.locator(".st-key-n input").press("Enter")
    settle(page)
    slider = page.locator(".st-key-depth").get_by_role("slider")
    slider.focus()
    while (now := int(slider.input_value())) != 6:
        slider.press("ArrowRight" if now < 6 else "ArrowLeft")
    settle(page)
    page.get_by_text("n = 24, d = 6").first.wait_for()
    assert "n=24" in page.url and "depth=6" in page.url
    designed = number(page, "Expected tokens per step")

    open_section(page, "Import and export")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download tree.json").click()
    saved = tmp_path / "tree.json"
    download.value.save_as(saved)
    exported = json.loads(saved.read_text())
    assert len(exported["parents"]) == 24 and abs(exported["expected_tokens"] - designed) < 0.01

    page.locator(".st-key-tree_file input[type=file]").set_input_files(saved)
    page.get_by_text("The table of methods above has it as a row").wait_for()


@pytest.mark.timeout(600)
def test_the_picture_follows_the_size_slider_while_it_is_dragged(page, server, shot):
    page.goto(f"{server}/?warm=1")  # a cold deep link makes Streamlit request files that do not exist
    settle(page)
    page.goto(f"{server}/tree?vector=llama3-70b-8b-cnn&n=128&depth=9&tree_section=One+tree+for+all%3F")
    settle(page)
    picture = page.locator(".st-key-tree_picture")
    picture.locator("[aria-label^='Token tree of 128 nodes']").wait_for()
    both_themes(page, shot, "tree", height=1_500)
    page.get_by_test_id("stDataFrame").nth(1).wait_for()
    both_themes(page, shot, "regret")
    point_at(picture, node=1)
    assert (
        "Node 1" in picture.locator(".caption").inner_text() and "f(v) = " in picture.locator(".caption").inner_text()
    )
    box = page.locator(".st-key-n_slider").get_by_test_id("stSliderThumbValue").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] + 10
    page.mouse.move(x, y)
    page.mouse.down()
    sizes = set()
    for _ in range(6):
        x -= 12
        page.mouse.move(x, y)
        page.wait_for_timeout(60)
        sizes.add(sum(each["node"] != "bonus" for each in drawn(picture)))
    page.mouse.up()
    settle(page)
    n = page.locator(".st-key-n input").input_value()
    picture.locator(f"[aria-label^='Token tree of {n} nodes']").wait_for()
    assert len(sizes) >= 4 and int(n) == min(sizes) < 128
    assert "Node 1" in picture.locator(".caption").inner_text()  # it stays chosen
