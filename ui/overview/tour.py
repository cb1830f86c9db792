"""The first thing a newcomer sees: a recorded run, played slowly."""

from __future__ import annotations

from ui.runs import kept_runs
from ui.token_tree import live_tree


def draw() -> None:
    """Play a recorded run, one that has a tree worth looking at; nothing where none ships."""
    run = next(iter(kept_runs.recorded()), None)
    if run is not None:
        live_tree(key="overview_tree", epoch=run["id"], run=run, steps=run["steps"], running=False, tour=True)
