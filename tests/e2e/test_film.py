"""The whole chain as a film on the first screen: it stops at once, and keeps what was measured."""

from __future__ import annotations

import time

import pytest

from .browser import LONG_MS, go, settle
from .test_accessibility import no_serious_faults


@pytest.mark.timeout(600)
def test_a_cancel_stops_it_at_once_and_what_was_measured_stays(page, server):
    page.goto(server)
    settle(page)
    stage = page.locator(".two-ways")
    page.get_by_role("button", name="Measure it on this machine").click()
    stage.locator(".told").filter(has_text="2 · Counting").wait_for(timeout=LONG_MS)
    page.get_by_role("button", name="Cancel").click()
    asked = time.monotonic()
    page.get_by_text("Stopped. What was measured until then is in use.").wait_for()
    assert time.monotonic() - asked < 5
    settle(page)
    assert stage.locator(".costs .sample").count() > 20 and stage.locator(".guesses .fill").count()
    assert page.get_by_role("button", name="Measure it on this machine").is_enabled()
    no_serious_faults(page)
    go(page, "Machine")
    page.get_by_text("measured here").first.wait_for()
