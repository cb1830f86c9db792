"""Dynamic trees over temperature, from the record that `benchmarks/dynamic.py --budget` leaves, where there is one."""

import json
from typing import Any

import streamlit as st

from sequoia_core.files.safe_files import read_bytes
from ui.exact import charts
from ui.markdown import escaped
from ui.session import shipped

NAME = "dynamic-budget.json"
TYPICAL = 16  # nodes, shown first


def record() -> dict[str, Any] | None:
    """Return the shipped record; None where there is none, or none that can be read."""
    path = shipped.ASSETS / "runs" / NAME
    try:
        held = json.loads(read_bytes(path))
        rows = [row for row in held["budgets"] if row["tree"] != "static"]
        sizes = sorted({int(row["size"]) for row in rows})
        settings = {name: held["settings"][name] for name in ("date", "prompts_decoded", "prompt_file", "dtype")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"rows": rows, "sizes": sizes, "settings": settings} if rows else None


def section(found: dict[str, Any]) -> None:
    """Draw how each kind of dynamic tree does against the static one of as many nodes."""
    st.caption("Does a tree that follows the draft yield more than the planned one, with as many nodes?")
    size = found["sizes"][0]
    if len(found["sizes"]) > 1:
        start = min(found["sizes"], key=lambda each: abs(each - TYPICAL))
        size = st.select_slider("Nodes", found["sizes"], value=start, key="robustness_dynamic_size")
    rows = [row for row in found["rows"] if row["size"] == size]
    st.plotly_chart(
        charts.dynamic_trees_figure(rows),
        width="stretch",
        key="robustness_dynamic",
        alt=f"Tokens per step of dynamic trees of {size} nodes, against the static tree's, over temperature",
    )
    best = max(rows, key=lambda row: row["over_static"]["value"])
    worst = min(rows, key=lambda row: row["over_static"]["value"])
    settings = found["settings"]
    st.markdown(
        f"With {size} nodes, {best['tree']} at T = {best['temperature']:g} yields "
        f"{best['over_static']['value']:.2f} times the static tree's tokens per step; {worst['tree']} at "
        f"T = {worst['temperature']:g} {worst['over_static']['value']:.2f} times. Time is not counted here: costs "
        "decide how many nodes pay."
    )
    st.caption(
        f":material/history: Recorded {escaped(str(settings['date']))} on {settings['prompts_decoded']} prompts of "
        f"{escaped(str(settings['prompt_file']))}, {escaped(str(settings['dtype']))}; 95% intervals, by prompts."
    )
