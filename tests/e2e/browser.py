"""Actions of a user in the browser: wait, change the page, choose, read a figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import TimeoutError

from tests.served_app import LONG_MS, settle, use_pair

__all__ = ["LONG_MS", "settle", "use_pair"]


def go(page, name: str, section: str = "") -> None:
    """Open a page of the menu, and optionally one of its tabs."""
    page.locator(".st-key-menu").get_by_role("link", name=name, exact=True).click()
    page.wait_for_function("name => document.title.startsWith(name)", arg=name)
    settle(page)
    if section:
        open_section(page, section)


def choose_option(page, box, option: str, *, typed: str = "") -> None:
    """Choose an option; a list opened while the page moves closes at once, so it may be opened again."""
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


def drawn(place) -> list[dict]:
    """Return what a tree's canvas shows of each node: its number or "bonus", state, text and box."""
    parts = "({node, state, text, dot, x, y, width, height}) => ({node, state, text, dot, x, y, width, height})"
    return place.locator(".field").first.evaluate(f"canvas => (canvas.placed ?? []).map({parts})")


def point_at(place, *, click: bool = True, **wanted) -> None:
    """Click or hover the first drawn node with these properties."""
    box = next(each for each in drawn(place) if wanted.items() <= each.items())
    position = {"x": box["x"] + box["width"] / 2, "y": box["y"]}
    field = place.locator(".field").first
    field.click(position=position) if click else field.hover(position=position)


def wait_for_speedup(page) -> None:
    """Wait for the measured speedup of a run that was just started on the live page."""
    own = page.locator(".figures").filter(has_not_text=re.compile("Recording|Last run|%"))
    own.filter(has_text=re.compile(r"\d× as fast")).first.wait_for(timeout=LONG_MS)


def open_section(page, name: str) -> None:
    """Open a tab of the page."""
    page.get_by_role("tab", name=name).click()
    settle(page)


@contextmanager
def in_popover(page, name: str) -> Iterator[None]:
    """Open a popover of the live page, and close it afterwards."""
    button = page.locator(".st-key-decode_controls").get_by_test_id("stPopoverButton").filter(has_text=name)
    button.click()
    page.get_by_test_id("stPopoverBody").wait_for()
    yield
    settle(page)
    button.click()  # text is submitted when it loses the focus
    page.get_by_test_id("stPopoverBody").wait_for(state="hidden")


@contextmanager
def in_plan(page, name: str) -> Iterator[None]:
    """Open a part of the plan bar ("models", "acceptance", "machine", "sampling"), and close it afterwards."""
    button = page.locator(f".st-key-plan_{name}_open").get_by_test_id("stPopoverButton").first
    button.click()
    page.get_by_test_id("stPopoverBody").wait_for()
    yield
    settle(page)
    page.keyboard.press("Escape")
    page.get_by_test_id("stPopoverBody").wait_for(state="hidden")
    settle(page)


def measure(page, name: str, button: str, said: str) -> None:
    """Start a measurement on a page and wait for its result."""
    go(page, name)
    if name == "Machine":
        page.locator(".st-key-hardware_form summary").click()
    else:
        page.locator(".st-key-acceptance_way").get_by_text("Measure", exact=True).click()
    settle(page)
    page.get_by_role("button", name=button).first.click()
    page.get_by_text(said).first.wait_for(timeout=LONG_MS)
    settle(page)


def metric(page, label: str) -> str:
    """Return the text of the figure under a label."""
    return page.locator("[data-testid=stMetric], .figures span").filter(has_text=label).first.inner_text()


def number(page, label: str) -> float:
    """Return the first number with a decimal point under a label."""
    return float(re.search(r"\d+\.\d+", metric(page, label))[0])


def both_themes(page, shot, name: str, *, height: int = 900) -> None:
    """Take screenshots of the page's top in light and dark, `height` pixels high."""
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"], "height": height})
    page.mouse.move(700, 12)  # over a tree, the wheel would zoom
    page.mouse.wheel(0, -10_000)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_500)
        shot(name if scheme == "light" else f"{name}-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(size)
