"""The live token tree: a custom component that keeps its DOM while steps arrive.

The facts of a run (an "epoch") travel once, each shape of its trees when it first occurs, and then only new steps. The
component keeps the history and asks for a resync when it was remounted or missed a step.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from sequoia_core.design.tree import TokenTree
from ui.token_tree.steering import Steering
from ui.tree_layout import tidy_layout
from ui.verifier_names import AFTER_REJECTION, DRAWN, NAMES, RIVALS

OVERLAP = 2  # steps sent again with each update: the server may drop a message that a newer one replaces
NODES_PER_UPDATE = 60_000  # bounds one message; the component requests the rest
TABLES = ("rows", "marginal")  # of a step: most of its bytes
_HERE = Path(__file__).parent


def read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


HTML, CSS = read("token_tree.html"), read("token_tree.css")
PARTS = "token_tree clock shapes drawing story rows marginal words"
SCRIPT = "\n".join(read(f"{part}.js") for part in PARTS.split())  # one module
_COMPONENT = st.components.v2.component("sequoia_token_tree", html=HTML, css=CSS, js=SCRIPT)


def to_wire(value: Any) -> Any:
    """Turn nested data into plain ints, floats, strings, lists and dicts; NaN and infinities become None.

    One numpy scalar would make Streamlit send the whole payload as a string, and NaN would be invalid JSON.
    """
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, np.ndarray):
        return to_wire(value.tolist())
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple | range):
        return [to_wire(item) for item in value]
    if isinstance(value, Mapping):
        return {_name(key): to_wire(item) for key, item in value.items()}
    raise TypeError(f"found {type(value).__name__}, expected numbers, strings, lists, dicts or numpy arrays of those")


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"found a key of type {type(key).__name__}, expected str")
    return str(key)


def live_tree(
    *,
    key: str,
    epoch: str,
    run: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    running: bool,
    waiting: str = "",
    interval_sec: float = 0.0,
    lean: bool = False,
    at: int | None = None,
    steering: Steering | None = None,
) -> None:
    """Show a run step by step, following it while it grows.

    Args:
        key: fixed for the place on the page, so that updates keep the component's DOM.
        epoch: names the run; a new one starts the component afresh.
        run: as `ui.runs.runs` describes it; its own steps are not looked at.
        steps: step records so far, as `ui.runs.runs.step_record` makes them.
        running: more steps may come.
        interval_sec: seconds until more steps come, about.
        lean: send all steps but the last without their tables until the run has ended: making and reading them takes
            processor time from the run.
        at: the step to begin at; None follows the run, and plays it slowly once it is over.
        steering: takes what the reader wishes of the run, which may wait for it.
    """
    sent = st.session_state.setdefault(f"{key}_sent", {"epoch": None, "index": 0})
    fresh = sent["epoch"] != epoch
    start = 0 if fresh else max(min(sent["index"], len(steps)) - OVERLAP, 0)
    shapes = run["shapes"]
    given = _that_fit(steps[start:], shapes)
    data = {
        "epoch": epoch,
        "about": run_about(run) | {"at": at, "plays": at is None} if fresh else None,
        "shapes": _new_shapes(shapes, steps[:start], given),
        "from": start,
        "steps": [*map(_lean, given[:-1]), *given[-1:]] if lean else given,
        "total": len(steps),
        "running": running,
        "waiting": waiting,
        "interval_sec": interval_sec,
        "link": None if running else run["id"],
        "held": None if steering is None else steering.waiting_after,
    }
    st.session_state[f"{key}_sent"] = {"epoch": epoch, "index": start + len(given)}
    _COMPONENT(
        key=key,
        data=to_wire(data),
        on_resync_change=partial(_resync, key),
        on_steer_change=partial(_steer, key, steering),
    )


def run_about(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the component is told of a run once, beside its shapes and steps."""
    verifier = "greedy" if run["temperature"] == 0 else run["verifier"]
    return {
        "prompt": run["prompt"],
        "head": run.get("head", False),  # its first guesses read true states, deeper ones its own output
        "greedy": verifier == "greedy",  # there the rule is equality with the target's most likely token
        "after_rejection": AFTER_REJECTION[verifier],
        "drawn": DRAWN[verifier],
        "verifiers": [[name, NAMES[name], name == verifier] for name in ("sequoia", *RIVALS)],
    }


def _that_fit(steps: Sequence[Mapping[str, Any]], shapes: Sequence[Sequence[int]]) -> list[Mapping[str, Any]]:
    """Return as many of the first steps as one message holds, at least one more than is sent again anyway."""
    nodes = accumulate(len(shapes[step["shape"]]) for step in steps)
    return [
        step
        for at, (step, size) in enumerate(zip(steps, nodes, strict=True))
        if at <= OVERLAP or size <= NODES_PER_UPDATE
    ]


def _lean(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step without its tables, marked as such."""
    return {name: value for name, value in step.items() if name not in TABLES} | {"lean": True}


def _new_shapes(
    shapes: Sequence[Sequence[int]], before: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the shapes the browser does not have yet."""
    new = {step["shape"] for step in given} - {step["shape"] for step in before}
    return [drawn_shape(index, shapes[index]) for index in sorted(new)]


def whole_shapes(shapes: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return every shape of a run for the component."""
    return [drawn_shape(index, parents) for index, parents in enumerate(shapes)]


def drawn_shape(index: int, parents: Sequence[int]) -> dict[str, Any]:
    """Return a shape: the parents [n], and the row of each node [n]."""
    return {"index": index, "parents": parents, "across": _across(tuple(parents))}


@lru_cache(maxsize=512)
def _across(parents: tuple[int, ...]) -> list[float]:
    """Return the row of each node, from 0 to leaves - 1, [n]."""
    return [across for across, _ in tidy_layout(TokenTree(np.array(parents)).to_networkx()).values()]


def _resync(key: str) -> None:
    """Note where the component asked to go on from, for the next run of the script."""
    asked = st.session_state[key].get("resync")
    if isinstance(asked, Mapping) and isinstance(asked.get("have"), int):
        have = max(asked["have"], 0)
        # With nothing in hand the component also lacks what is known of the run.
        st.session_state[f"{key}_sent"] = {"epoch": asked.get("epoch") if have else None, "index": have}


def _steer(key: str, steering: Steering | None) -> None:
    """Tell the run what the reader pressed: hold, take one more step, go on."""
    wish = st.session_state[key].get("steer")
    if steering is None or not isinstance(wish, Mapping):
        return
    if wish.get("hold"):
        steering.stepwise = True
    elif wish.get("on"):
        steering.run_on()
    elif isinstance(wish.get("next"), int):
        steering.next_step(wish["next"])
