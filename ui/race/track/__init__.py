"""The race track: a custom component with a lane for each method, which replays finished races."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import streamlit as st

from ui.phrases import ONE_PASS_DIGITS, times, times_between
from ui.race.race_job import Race
from ui.token_tree import read_asset, to_wire

_HERE = Path(__file__).parent
_HTML, _CSS, _JS = ((_HERE / f"race_track.{suffix}").read_text(encoding="utf-8") for suffix in ("html", "css", "js"))
_COMPONENT = st.components.v2.component("sequoia_race_track", html=_HTML, css=_CSS, js=_JS + read_asset("clock.js"))

SLOWER = 0.95  # a speedup from here to 1 is a tie


def draw_lanes(lanes: list[dict[str, Any]], *, running: str = "", verdict: str = "", epoch: str) -> None:
    """Draw lanes, and replay them if there is a verdict, in which case the first is the fastest.

    Args:
        running: name of the method that is decoding.
        epoch: identifies the race; the browser draws lanes again only if it or what they show changes.
    """
    epoch = " ".join([epoch, running, verdict, *(lane["figures"] for lane in lanes)])
    data = {"epoch": epoch, "lanes": lanes, "running": running, "verdict": verdict}
    # The key is the same during all states of the page, so that the browser keeps the component.
    _COMPONENT(key="race_track", data=to_wire(data))


def with_figures(lane: dict[str, Any], alone: float, rounds: Sequence[float]) -> dict[str, Any]:
    """Return a lane with its speed; `alone` and `rounds` are the seconds of plain decoding and of its rounds."""
    words = describe_speedup(alone, rounds)
    rate = lane["tokens"][-1] / median(rounds)
    return lane | {"figures": f"{words} · {rate:,.0f} tok/s", "slower": "slower" in words}


def describe_speedup(alone: float, rounds: Sequence[float]) -> str:
    """Format the median speedup of rounds over `alone`, all in seconds, and its range if the rounds differ."""
    slower = alone < SLOWER * median(rounds)
    ratios = [sec / alone if slower else alone / sec for sec in (median(rounds), min(rounds), max(rounds))]
    words = times(ratios[0], ONE_PASS_DIGITS) + (" slower" if slower else "")
    span = times_between(min(ratios), max(ratios), ONE_PASS_DIGITS)
    return f"{words} ({span})" if " to " in span else words


def describe_lane(race: Race, name: str) -> dict[str, Any]:
    """Return a method's lane: for each step of its first round, its end, the tokens so far, and its text.

    The ends are scaled to the method's median time, which its figures state. The lane is empty if it has not run.
    """
    if name not in race.runs:
        return {"name": name, "ends": [], "tokens": [], "texts": [], "figures": "", "slower": False}
    steps = race.runs[name]["steps"]
    ends = list(accumulate(sum(step["seconds"]) for step in steps))
    lane = {
        "name": name,
        "ends": [end * race.results[name].median_step_sec / ends[-1] for end in ends],
        "tokens": list(accumulate(len(step["pieces"]) for step in steps)),
        "texts": ["".join(step["pieces"]) for step in steps],
    }
    return with_figures(lane, race.results[race.names[0]].median_step_sec, race.results[name].step_sec)
