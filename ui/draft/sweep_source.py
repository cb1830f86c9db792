"""Which sweep is compared: one that ships, or a folder of results on this machine."""

from pathlib import Path

import streamlit as st

from ui import controls
from ui.markdown import escaped
from ui.session import shipped, sweeps

WAYS = SHIPPED, FOLDER = ("Shipped", "Folder")


def typed_folder(name: str) -> Path:
    """Return the folder that a person typed."""
    if not name.strip():
        raise ValueError("Folder: found none, expected where the results are, or go")
    try:
        return Path(name.strip()).expanduser()
    except RuntimeError as error:
        raise ValueError(f"Folder: found {name.strip()[:60]!r} ({error}), expected a path") from error


def section() -> Path | None:
    """Draw the choice -> the folder; None before there is one."""
    if (arrived := sweeps.pop_folder_to_show()) is not None:
        st.session_state["compare_way"], st.session_state["compare_folder"] = FOLDER, arrived
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    with left:
        way = controls.source_picker("Which sweep", WAYS, key="compare_way")
    if way == FOLDER:
        name = right.text_input(
            "Folder of results",
            key="compare_folder",
            persist_state="session",
            max_chars=4096,
            placeholder="/path/to/results",
            label_visibility="collapsed",
            help="On the machine that runs the app: what `sequoia sweep --out` was given.",
        )
        if name.strip():
            try:
                return typed_folder(name)
            except ValueError as error:
                st.error(escaped(str(error)), icon=":material/error:")
                return None
        st.info(
            "Name the folder of a sweep. A sweep is measured by `sequoia sweep PLAN.toml --out FOLDER`, or below.",
            icon=":material/folder_open:",
        )
        return None
    found = shipped.sweeps()
    if not found:
        st.info(
            "No sweep ships with this installation. Measure one with `sequoia sweep PLAN.toml --out FOLDER`, or below, "
            "and name its folder under *Folder*.",
            icon=":material/grid_on:",
        )
        return None
    name = right.selectbox("Sweep", list(found), key="compare_sweep", bind="query-params", label_visibility="collapsed")
    return found[name]
