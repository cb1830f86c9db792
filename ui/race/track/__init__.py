"""The race track: a custom component that replays finished methods side by side, in real time or slower."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import streamlit as st

from ui.race.race_job import Race
from ui.token_tree import read, to_wire

LEVEL = 0.05  # of the time: nearer than that is chance on one prompt
_HERE = Path(__file__).parent
_HTML, _CSS, _JS = ((_HERE / f"race_track.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
_COMPONENT = st.components.v2.component("sequoia_race_track", html=_HTML, css=_CSS, js=_JS + read("clock.js"))


def race_track(race: Race, *, key: str, epoch: str) -> None:
    """Draw the methods, and play them once all have run: another `epoch` starts from the line."""
    runs = dict(race.runs)
    waiting = [name for name in race.names if name not in runs]
    draw_methods([method(name, run) for name, run in runs.items()], waiting, key=key, epoch=f"{epoch} {len(runs)}")


def draw_methods(methods: list[dict[str, Any]], waiting: list[str], *, key: str, epoch: str) -> None:
    """Draw methods as `method` describes them, and the names of those that wait."""
    _COMPONENT(key=key, data=to_wire({"epoch": epoch, "methods": methods, "waiting": waiting, "level": LEVEL}))


def method(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return what the browser needs of a method: when each step ended, the tokens by then, and their text."""
    steps = run["steps"]
    return {
        "name": name,
        "ends": list(accumulate(sum(step["seconds"]) for step in steps)),
        "tokens": list(accumulate(len(step["pieces"]) for step in steps)),
        "texts": ["".join(step["pieces"]) for step in steps],
    }
