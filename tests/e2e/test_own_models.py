"""From models of one's own to a measured plan and a run, in Chromium."""

import shutil
import time

import pytest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import gemma
from tests.e2e.browser import settle, wait_for_speedup

VERDICTS = ("It pays", "It may pay", "It does not pay")
UNCHANGED_SEC = 15  # on a busy machine; about 3 s on an idle one


def open_from_start(page, server: str) -> None:
    page.goto(server)
    settle(page)
    page.get_by_test_id("stMain").get_by_role("link", name="My models", exact=True).click()
    page.wait_for_function("document.title.startsWith('My models')")
    settle(page)


def wait_for_plan(page, limit_sec: float) -> float:
    """Wait for the verdict on the plan, and return the longest time without a change of the page in seconds."""
    longest = 0.0
    seen = ""
    began = changed = time.monotonic()
    while not any(verdict in seen for verdict in VERDICTS):
        assert time.monotonic() - began < limit_sec, seen
        said = page.get_by_test_id("stMain").inner_text()
        bars = page.get_by_role("progressbar").evaluate_all("bars => bars.map((bar) => bar.ariaValueNow)")
        if (now := f"{said} {bars}") != seen:
            longest = max(longest, time.monotonic() - changed)
            changed = time.monotonic()
            seen = now
        page.wait_for_timeout(1_000)
    settle(page)
    return longest


def decode(page) -> None:
    """Follow the link to the live page, and decode there."""
    page.locator(".st-key-step_watch").get_by_role("link").click()
    page.wait_for_function("document.title.startsWith('Live')")
    settle(page)
    page.locator(".st-key-decode_start button").click()
    wait_for_speedup(page)


@pytest.mark.timeout(300)
def test_folders_are_checked_measured_planned_and_decoded_with(page, server, tmp_path, shot):
    folders = [shutil.copytree(DEMO_PAIR / name, tmp_path / name) for name in ("target", "draft")]
    open_from_start(page, server)
    step = page.locator(".st-key-step_models")
    for role, folder in zip(("target", "draft"), reversed(folders), strict=True):  # the large model as the draft
        step.locator(f".st-key-own_{role} input").fill(str(folder))
    step.get_by_role("button", name="Use this pair").click()
    page.get_by_text("it cannot pay").wait_for()
    for role, folder in zip(("target", "draft"), folders, strict=True):
        step.locator(f".st-key-own_{role} input").fill(str(folder))
    step.get_by_role("button", name="Use this pair").click()
    page.get_by_text("even if every guess is right").wait_for()
    settle(page)
    shot("my-models")
    page.get_by_role("button", name="Measure first").click()
    wait_for_plan(page, 120)
    page.get_by_text("tokens per step, 1.00 without a draft").wait_for()
    decode(page)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.skipif(not gemma.is_installed(), reason=gemma.INSTALL)
def test_one_click_on_the_offered_model_leads_to_a_plan_and_progress_is_always_shown(page, server):
    open_from_start(page, server)
    page.locator(".st-key-own_gemma_pair button").click()
    assert wait_for_plan(page, 600) < UNCHANGED_SEC
    decode(page)
