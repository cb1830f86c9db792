"""The live token tree: a custom component that keeps its DOM while steps arrive.

The tree keeps its shape within a run (an "epoch"), so the layout travels once and then only new steps do. The component
keeps the history and asks for a resync when it was remounted or missed a step. Its three files lie beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from sequoia_core.design.tree import TokenTree
from ui.tree_layout import tidy_layout
from ui.verifier_names import AFTER_REJECTION

OVERLAP = 2  # steps sent again with each update: the server may drop a message that a newer one replaces
NODES_PER_UPDATE = 60_000  # bounds one message; the component requests the rest
_HERE = Path(__file__).parent


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


_COMPONENT = st.components.v2.component(
    "sequoia_token_tree", html=_read("token_tree.html"), css=_read("token_tree.css"), js=_read("token_tree.js")
)


def to_wire(value: Any) -> Any:
    """Turn nested data into plain ints, floats, strings, lists and dicts; NaN and infinities become None.

    One numpy scalar would make Streamlit send the whole payload as a string, and NaN would be invalid JSON.

    Raises:
        TypeError: for anything else, naming its type.
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
    tree: TokenTree,
    prompt: str,
    verifier: str,
    steps_since: Callable[[int], list[dict[str, Any]]],
    total: int,
    running: bool,
    waiting: str = "",
) -> None:
    """Show a run step by step, following it while it grows.

    Args:
        key: fixed for the place on the page, so that updates keep the component's DOM.
        epoch: names the run; a new one starts the component afresh.
        tree: the shape that every step of this run fills.
        prompt: shown before the generated text.
        verifier: "sequoia", "specinfer" or "topk"; "greedy" at temperature 0, where the rule is equality with the
            target's most likely token.
        steps_since: returns step records (as `ui.runs.step_record` makes them) from an index on.
        total: steps there are so far.
        running: more steps may come.
        waiting: shown while there is no step.
    """
    sent = st.session_state.setdefault(f"{key}_sent", {"epoch": None, "index": 0})
    fresh = sent["epoch"] != epoch
    start = 0 if fresh else max(min(sent["index"], total) - OVERLAP, 0)
    steps = steps_since(start)[: max(NODES_PER_UPDATE // tree.size, OVERLAP + 1)]
    data = {
        "epoch": epoch,
        "layout": _layout_record(tree, prompt, verifier) if fresh else None,
        "from": start,
        "steps": steps,
        "total": total,
        "running": running,
        "waiting": waiting,
    }
    st.session_state[f"{key}_sent"] = {"epoch": epoch, "index": start + len(steps)}
    _COMPONENT(key=key, data=to_wire(data), on_resync_change=partial(_resync, key))


def _resync(key: str) -> None:
    """Note where the component asked to go on from; the run of the script that follows sends it."""
    asked = st.session_state[key].get("resync")
    if isinstance(asked, Mapping) and isinstance(asked.get("have"), int):
        have = max(asked["have"], 0)
        # With nothing in hand the component also lacks the layout.
        st.session_state[f"{key}_sent"] = {"epoch": asked.get("epoch") if have else None, "index": have}


def _layout_record(tree: TokenTree, prompt: str, verifier: str) -> dict[str, Any]:
    place = tidy_layout(tree)
    return {
        "parents": tree.parents,
        "ranks": tree.child_ranks,
        "across": place[:, 0],
        "depths": tree.depths,
        "prompt": prompt,
        "greedy": verifier == "greedy",
        "after_rejection": AFTER_REJECTION[verifier],
    }
