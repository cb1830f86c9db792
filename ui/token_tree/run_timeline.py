"""The timeline of a run: its text as one line, the tree of each step below it, and the time of each step.

A second run of the same prompt can be drawn below, on the same axis. Messages are those of the live tree, one per run.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from ui.token_tree import CSS, next_message, read_asset, read_html, read_script, store_request, to_wire, without_tables

HTML = read_html("run_timeline")
STYLE = CSS + read_asset("run_timeline.css")
PARTS = "run_timeline timeline_play timeline_drawing timeline_marks timeline_sums"
SCRIPT = read_script(f"{PARTS} history stage pen clock words story rows marginal")
_COMPONENT = st.components.v2.component("sequoia_run_timeline", html=HTML, css=STYLE, js=SCRIPT)


def run_timeline(*several: Mapping[str, Any], key: str, epoch: str = "", running: bool = False) -> None:
    """Draw the timelines of one or more runs with the same prompt, below each other.

    Args:
        several: the runs, as described in `ui.runs.run_schema`, with their steps so far.
        key: widget key; must not change between updates, so that they preserve the component's DOM.
        epoch: identifier of a run that has not ended; a new one resets the component.
        running: whether more steps may follow.
    """
    messages = []
    for at, run in enumerate(several):
        message = next_message(f"{key}_{at}", epoch or run["id"], run, run["steps"])
        message |= {"steps": [without_tables(step) for step in message["steps"]], "baseline": run["baseline"]}
        messages.append(message)
    _COMPONENT(key=key, data=to_wire({"runs": messages, "running": running}), on_resync_change=partial(_resync, key))


def _resync(key: str) -> None:
    asked = st.session_state[key].get("resync")
    if isinstance(asked, Mapping) and isinstance(asked.get("run"), int):
        store_request(f"{key}_{asked['run']}", asked)
