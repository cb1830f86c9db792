"""The live token tree: a custom component that preserves its DOM while steps arrive.

The facts about a run (an "epoch") are sent once, each tree shape when it first occurs, and otherwise only new steps.
The component stores the history and requests a resync after a remount or a missed step.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from sequoia_core.trees.tree import TokenTree
from ui.token_tree.steering import Steering
from ui.tree_layout import tidy_layout
from ui.verifier_names import AFTER_REJECTION, DRAWING_PHRASES, RIVALS, VERIFIER_NAMES

OVERLAP = 2  # number of steps resent with each update, because the server may drop a superseded message
NODES_PER_UPDATE = 60_000  # limit per message; the component requests the rest
STEP_TABLES = ("rows", "marginal")  # the fields that take up most of a step's bytes
_HERE = Path(__file__).parent
Figure = tuple[str, str, bool]  # label, formatted value, and whether it is bad


def read_asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return (_HERE / name).read_text(encoding="utf-8")


def read_html(name: str) -> str:
    """Return a component's HTML with the parts that components share."""
    shared = {"STAGE": "stage.html", "PLAY_BAR": "play_bar.html"}
    whole = read_asset(f"{name}.html")
    for mark, part in shared.items():
        whole = whole.replace(mark, read_asset(part))
    return whole


def read_script(names: str) -> str:
    """Return the JavaScript modules with these names as one module."""
    return "\n".join(read_asset(f"{name}.js") for name in names.split())


STAGE = "stage shapes drawing pen clock words"
HTML = read_html("token_tree")
CSS = read_asset("token_tree.css")
SCRIPT = read_script(f"token_tree history {STAGE} story rows marginal")
_COMPONENT = st.components.v2.component("sequoia_token_tree", html=HTML, css=CSS, js=SCRIPT)


def to_wire(value: Any) -> Any:
    """Convert nested data to plain ints, floats, strings, lists and dicts; NaN and infinities become None.

    A single NumPy scalar would make Streamlit send the entire payload as a string, and NaN is not valid JSON.
    """
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return to_wire(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple | range):
        return [to_wire(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    raise TypeError(f"found {type(value).__name__}, expected numbers, strings, lists, dicts or NumPy arrays")


def live_tree(
    *,
    key: str,
    epoch: str,
    run: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    running: bool,
    figures: Sequence[Figure] = (),
    waiting: str = "",
    interval_sec: float = 0.0,
    at: int | None = None,
    steering: Steering | None = None,
) -> None:
    """Show a run step by step, and follow it while it is running.

    Args:
        key: widget key; must not change between updates, so that they preserve the component's DOM.
        epoch: identifier of the run; a new one resets the component.
        run: the run, as described in `ui.runs.run_schema`; its steps are ignored.
        steps: the step records so far, as returned by `ui.runs.runs.step_record`.
        running: whether more steps may follow.
        figures: shown on the stage's upper edge.
        interval_sec: approximate seconds between updates.
        at: index of the step to begin with; None follows the run, and plays it slowly once it has ended.
        steering: passes the viewer's requests to the run, which may wait for them; None if the run cannot be steered.
    """
    # The tables take CPU time away from the run, so until it has ended only the last step has them.
    lean = running and steering is not None and not steering.stepwise
    message = next_message(key, epoch, run, steps)
    if message["about"]:
        message["about"] |= {"at": at, "plays": at is None}
    if lean:
        *others, last = message["steps"] or [{}]
        message["steps"] = [*(without_tables(step) | {"lean": True} for step in others), last]
    data = message | {
        "running": running,
        "figures": figures,
        "waiting": waiting,
        "interval_sec": interval_sec,
        "link": None if running else run["id"],
        "held": None if steering is None else steering.waiting_after,
    }
    _COMPONENT(
        key=key,
        data=to_wire(data),
        on_resync_change=partial(_resync, key),
        on_steer_change=partial(_steer, key, steering),
    )


def next_message(key: str, epoch: str, run: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the component with this key has not received of a run, and record that it was sent."""
    sent = st.session_state.setdefault(f"{key}_sent", {"epoch": None, "index": 0})
    fresh = sent["epoch"] != epoch
    start = 0 if fresh else max(min(sent["index"], len(steps)) - OVERLAP, 0)
    given = _fit_message(steps[start:], run["shapes"])
    new = {step["shape"] for step in given} - {step["shape"] for step in steps[:start]}
    st.session_state[f"{key}_sent"] = {"epoch": epoch, "index": start + len(given)}
    return {
        "epoch": epoch,
        "about": run_about(run) if fresh else None,
        "shapes": [drawn_shape(index, run["shapes"][index]) for index in sorted(new)],
        "from": start,
        "steps": given,
        "total": len(steps),
    }


def run_about(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a run that are sent only once; excludes its shapes and steps."""
    verifier = "greedy" if run["temperature"] == 0 else run["verifier"]
    return {
        "prompt": run["prompt"],
        "head": run.get("head", False),  # a draft head reads the target's hidden states only for the first guess
        "greedy": verifier == "greedy",  # the rule that compares with the target's most likely token
        "after_rejection": AFTER_REJECTION[verifier],
        "drawn": DRAWING_PHRASES[verifier],
        "verifiers": [[name, VERIFIER_NAMES[name], name == verifier] for name in ("sequoia", *RIVALS)],
    }


def _fit_message(steps: Sequence[Mapping[str, Any]], shapes: Sequence[Sequence[int]]) -> list[Mapping[str, Any]]:
    """Return the leading steps that fit in one message: at least one step more than is resent anyway."""
    nodes = accumulate(len(shapes[step["shape"]]) for step in steps)
    return [
        step
        for at, (step, size) in enumerate(zip(steps, nodes, strict=True))
        if at <= OVERLAP or size <= NODES_PER_UPDATE
    ]


def without_tables(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a step without its tables."""
    return {name: value for name, value in step.items() if name not in STEP_TABLES}


def whole_shapes(shapes: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return all of a run's shapes in the component's form."""
    return [drawn_shape(index, parents) for index, parents in enumerate(shapes)]


def drawn_shape(index: int, parents: Sequence[int]) -> dict[str, Any]:
    """Return a shape in the component's form: each node's parent [n] and row [n]."""
    return {"index": index, "parents": parents, "across": _across(tuple(parents))}


@lru_cache(maxsize=512)
def _across(parents: tuple[int, ...]) -> list[float]:
    """Return each node's row [n] in the drawing, from 0 to the number of leaves - 1."""
    return [across for across, _ in tidy_layout(TokenTree(np.array(parents)).to_networkx()).values()]


def _resync(key: str) -> None:
    """Store the position that the component requested, for the next script run."""
    store_request(key, st.session_state[key].get("resync"))


def store_request(key: str, asked: Any) -> None:
    """Let the next message for this key begin where the component requested."""
    if isinstance(asked, Mapping) and isinstance(asked.get("have"), int):
        have = max(asked["have"], 0)
        # A component without steps also lacks the facts about the run.
        st.session_state[f"{key}_sent"] = {"epoch": asked.get("epoch") if have else None, "index": have}


def _steer(key: str, steering: Steering | None) -> None:
    """Pass the viewer's request on to the run: pause, take one more step, or continue."""
    request = st.session_state[key].get("steer")
    if steering is None or not isinstance(request, Mapping):
        return
    if request.get("hold"):
        steering.stepwise = True
    elif request.get("on"):
        steering.run_on()
    elif isinstance(request.get("next"), int):
        steering.next_step(request["next"])
