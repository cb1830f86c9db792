"""The runs that a session can show: those it decoded or opened, newest first, then the shipped recordings."""

from typing import Any

import streamlit as st

from sequoia_core.trees.tree import TokenTree
from ui.markdown import escaped, visible
from ui.phrases import count
from ui.runs import run_files, run_store, runs
from ui.session import predictions, shipped
from ui.session.state import state

TITLE_CHARS = 110
ORIGIN_CHARS = 40


def all_runs() -> dict[str, dict[str, Any]]:
    """Return all available runs by id."""
    stored = {run_id: each.run for run_id, each in run_store.list_runs().items()}
    return stored | {run["id"]: run for run in recorded_runs() if run["id"] not in stored}


def find_run(run_id: str) -> dict[str, Any] | None:
    """Return an available run by its id; None if there is none."""
    recorded = (run for run in recorded_runs() if run["id"] == run_id)
    return run_store.find_run(run_id) or next(recorded, None)


def recorded_runs() -> list[dict[str, Any]]:
    """Return the shipped recordings."""
    return [_load_recorded(str(path), path.stat().st_mtime_ns) for path in shipped.runs().values()]


@st.cache_data(show_spinner=False, max_entries=4)
def _load_recorded(path: str, modified: int) -> dict[str, Any]:
    return run_files.load_run(path)


def run_origin(run: dict[str, Any]) -> str:
    """Describe where a run comes from."""
    stored = state().runs.get(run["id"])
    return "recorded" if stored is None else stored.origin


def run_title(run: dict[str, Any]) -> str:
    """Return a run's title for a select box, which shows text literally."""
    origin = run_origin(run)
    sampled = "greedy" if run["temperature"] == 0 else f"T = {run['temperature']:g}, seed {run['seed']}"
    words = visible(f"{origin[:ORIGIN_CHARS]}: {runs.pair_title(run)}, {sampled}, {run['tree_source'] or 'a tree'}")
    return f"{words[:TITLE_CHARS]} · {run['id'][:4]}"


def draw_settings(*several: dict[str, Any]) -> None:
    """Show the settings of a run, or of all runs in a race; as a warning if they used a different pair."""
    words = escaped(runs.describe_settings(*several))
    if predictions.matches_pair_in_use(several[0]):
        st.caption(f":material/label: Measured with {words}.")
    else:
        here = escaped(runs.describe_settings(predictions.pair_in_use()))
        st.warning(f"Measured with {words}: not the current pair, {here}.", icon=":material/warning:")


def describe_shapes(run: dict[str, Any]) -> str:
    """Describe a run's trees: n and d if there is only one, otherwise their number and sizes."""
    if not run["shapes"]:
        return "–"
    sizes = [len(parents) for parents in run["shapes"]]
    if len(sizes) == 1:
        return f"n = {sizes[0]}, d = {TokenTree(run['shapes'][0]).depth}"
    return f"{count(len(sizes), 'tree')}, n = {min(sizes)} to {max(sizes)}"
