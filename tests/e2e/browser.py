"""What a person does in the browser, for the journeys: wait, change page, read a figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import TimeoutError

from tests.served_app import LONG_MS, settle, use_pair

__all__ = ["LONG_MS", "settle", "use_pair"]
WAYS = {"Draft": "acceptance_way", "Machine": "hardware_way"}  # page -> where its figures come from


def go(page, name: str, section: str = "") -> None:
    """Open a page of the menu, and one of its tabs."""
    page.locator(".st-key-menu").get_by_role("link", name=name, exact=True).click()
    page.wait_for_function("name => document.title.startsWith(name)", arg=name)
    settle(page)
    if section:
        open_section(page, section)


def choose_option(page, box, option: str, *, typed: str = "") -> None:
    """Choose from a list; one opened while the page still moves closes at once, and is opened again."""
    wanted = page.get_by_role("option", name=option, exact=bool(typed))
    for attempt in range(4):
        box.click()
        page.keyboard.type(typed)
        try:
            wanted.click(timeout=5_000)
            break
        except TimeoutError:
            if attempt == 3:
                raise
            page.keyboard.press("Escape")
    settle(page)


def open_section(page, name: str) -> None:
    """Open a tab of the page."""
    page.get_by_role("tab", name=name).click()
    settle(page)


@contextmanager
def in_popover(page, name: str) -> Iterator[None]:
    """Open the popover of that name on the live page for a while."""
    button = page.locator(".st-key-decode_controls").get_by_test_id("stPopoverButton").filter(has_text=name)
    button.click()
    page.get_by_test_id("stPopoverBody").wait_for()
    yield
    settle(page)
    button.click()  # what was written is taken over as the focus leaves it
    page.get_by_test_id("stPopoverBody").wait_for(state="hidden")


def measure(page, name: str, button: str, said: str) -> None:
    """Measure on the page of that name with its button, and wait until it says what was measured."""
    go(page, name)
    page.locator(f".st-key-{WAYS[name]}").get_by_text("Measure", exact=True).click()
    settle(page)
    page.get_by_role("button", name=button).first.click()
    page.get_by_text(said).first.wait_for(timeout=LONG_MS)
    settle(page)


def metric(page, label: str) -> str:
    """Return the text of the figure under a label."""
    return page.get_by_test_id("stMetric").filter(has_text=label).first.inner_text()


def number(page, label: str) -> float:
    """Return the first number with a decimal point under a label."""
    return float(re.search(r"\d+\.\d+", metric(page, label))[0])


def both_themes(page, shot, name: str, *, height: int = 900) -> None:
    """Take the page from its top in light and in dark, `height` pixels of it."""
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"], "height": height})
    page.mouse.move(700, 300)
    page.mouse.wheel(0, -10_000)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_500)
        shot(name if scheme == "light" else f"{name}-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(size)
