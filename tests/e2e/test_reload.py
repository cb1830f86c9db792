"""Reloading a page loses nothing, and links to runs and plans open in other browsers and after a restart."""

import pytest

from tests.e2e.browser import LONG_MS, go, in_plan, in_popover, metric, settle

PROMPT = "def my_own_function(first, second):\n    "


def reload(page) -> None:
    page.reload()
    settle(page)


def type_prompt(page, address: str) -> None:
    page.goto(f"{address}/decode?tokens=64")
    settle(page)
    with in_popover(page, "Prompt"):
        page.get_by_label("Prompt", exact=True).fill(PROMPT)
        page.wait_for_url("**plan=**")  # without leaving the field


def prompt_button(page) -> str:
    return page.locator(".st-key-decode_controls").get_by_test_id("stPopoverButton").first.inner_text()


def decode(page) -> None:
    page.locator(".st-key-decode_start button").click()
    page.locator(".st-key-decode_stop button:not([disabled])").first.wait_for(timeout=LONG_MS)


def finish(page) -> None:
    page.locator(".st-key-decode_start button:not([disabled])").first.wait_for(timeout=LONG_MS)
    settle(page)


@pytest.mark.timeout(600)
def test_a_prompt_and_its_run_survive_reloads_other_browsers_and_a_restart(tabs, own_server) -> None:
    page = tabs()
    type_prompt(page, own_server.address)
    reload(page)
    assert "my_own" in prompt_button(page)
    decode(page)
    reload(page)
    page.get_by_text("Decoding: see this page").first.or_(page.get_by_text("Engine idle").first).wait_for()
    finish(page)
    speed = metric(page, "tokens/s")
    assert page.get_by_text("Plan with this run's acceptance").count()  # offered only after a run of this session
    reload(page)
    assert metric(page, "tokens/s") == speed and "my_own" in prompt_button(page)
    other = tabs()
    other.goto(page.url)
    settle(other)
    assert metric(other, "tokens/s") == speed
    own_server.stop()
    own_server.start()
    last = tabs()
    last.goto(page.url)
    settle(last)
    assert metric(last, "tokens/s") == speed and "my_own" in prompt_button(last)
    last.goto(own_server.address)
    settle(last)
    last.get_by_role("link", name="decoded here").first.click()
    last.wait_for_url("**/decode?run=**")
    settle(last)
    assert metric(last, "tokens/s") == speed


@pytest.mark.timeout(600)
def test_a_measurement_under_way_survives_a_reload(tabs, own_server) -> None:
    page = tabs()
    page.goto(f"{own_server.address}/draft")
    settle(page)
    page.locator(".st-key-acceptance_way").get_by_text("Measure", exact=True).click()
    settle(page)
    page.get_by_role("button", name="Measure on the demo pair").first.click()
    page.get_by_role("button", name="Cancel").first.wait_for(timeout=LONG_MS)
    reload(page)
    page.get_by_text("measured here").first.wait_for(timeout=LONG_MS)
    settle(page)
    reload(page)
    page.get_by_text("measured here").first.wait_for()


@pytest.mark.timeout(600)
def test_an_upload_and_a_chosen_machine_survive_a_reload_and_a_restart(tabs, own_server, tmp_path) -> None:
    page = tabs()
    page.goto(f"{own_server.address}/tree")
    settle(page)
    numbers = tmp_path / "mine.csv"
    numbers.write_text("0.61\n0.12\n0.05\n")
    with in_plan(page, "acceptance"):
        page.locator("[data-testid=stPopoverBody] input[type=file]").first.set_input_files(numbers)
        page.locator(".st-key-plan_acceptance_open").get_by_text("mine.csv").first.wait_for()
    with in_plan(page, "machine"):
        page.get_by_test_id("stPopoverBody").get_by_text("H200").first.click()
        page.locator(".st-key-plan_machine_open").get_by_text("H200").first.wait_for()
    bar = page.locator(".st-key-plan_bar").inner_text()
    reload(page)
    assert page.locator(".st-key-plan_bar").inner_text() == bar
    own_server.stop()
    own_server.start()
    other = tabs()
    other.goto(page.url)
    settle(other)
    assert other.locator(".st-key-plan_bar").inner_text() == bar
    go(other, "Machine")
    assert other.locator(".st-key-plan_bar").inner_text() == bar
