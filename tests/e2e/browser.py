"""What a person does in the browser, for the journeys: wait, change page, read a figure."""

from __future__ import annotations

import re

LONG_MS = 240_000


def settle(page) -> None:
    """Wait until the script has run and its results are on the page."""
    page.wait_for_selector('[data-testid="stApp"][data-test-connection-state="CONNECTED"]')
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=LONG_MS)
    page.wait_for_timeout(400)
    assert page.locator('[data-testid="stException"]').count() == 0, page.locator(
        '[data-testid="stException"]'
    ).inner_text()


def go(page, name: str) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()
    settle(page)
    assert page.get_by_role("heading", name=re.compile(name, re.I)).first.is_visible()


def metric(page, label: str) -> str:
    """Return the text of the figure under a label."""
    return page.get_by_test_id("stMetric").filter(has_text=label).first.inner_text()


def number(page, label: str) -> float:
    """Return the first number with a decimal point under a label."""
    return float(re.search(r"\d+\.\d+", metric(page, label))[0])
