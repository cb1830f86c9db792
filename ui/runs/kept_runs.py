"""Runs that a session can look at again: its own and those it opened, newest first, then the recorded ones."""

from typing import Any

import streamlit as st

from sequoia_core.design.tree import TokenTree
from ui import uploads
from ui.markdown import escaped, visible
from ui.phrases import count
from ui.runs import run_files, runs
from ui.session import predictions, session, shipped

TITLE_CHARS, ORIGIN_CHARS = 110, 40


def every() -> dict[str, dict[str, Any]]:
    """Return every run by id."""
    return session.runs() | {run["id"]: run for run in recorded() if run["id"] not in session.runs()}


def recorded() -> list[dict[str, Any]]:
    """Return the runs that ship with the app."""
    return [_recorded(str(path), path.stat().st_mtime_ns) for path in shipped.runs().values()]


@st.cache_data(show_spinner=False, max_entries=4)
def _recorded(path: str, modified: int) -> dict[str, Any]:
    return run_files.load_run(path)


def title(run: dict[str, Any]) -> str:
    """Describe a run for a list of choices, which shows text as it is."""
    origin = session.run_origins().get(run["id"], "recorded")
    sampled = "greedy" if run["temperature"] == 0 else f"T = {run['temperature']:g}, seed {run['seed']}"
    words = visible(f"{origin[:ORIGIN_CHARS]}: {runs.pair_of(run)}, {sampled}, {run['tree_source'] or 'a tree'}")
    return f"{words[:TITLE_CHARS]} · {run['id'][:4]}"


def say_made_with(*several: dict[str, Any]) -> None:
    """Say what a run, or each run of a race, was made with: a warning where that is not the pair in use."""
    words = escaped(runs.made_with(*several))
    if predictions.is_of_pair_in_use(several[0]):
        st.caption(f":material/label: Measured with {words}.")
    else:
        here = escaped(runs.made_with(predictions.pair_in_use()))
        st.warning(f"Measured with {words}: not the pair in use, {here}.", icon=":material/warning:")


def upload(*, key: str) -> uploads.Upload[dict[str, Any]] | None:
    """Draw an uploader for a run; one that can be read is kept in the session."""
    file = uploads.file_upload(
        "Open a run", ("jsonl", "json"), run_files.run_from_bytes, key=key, help="A file that this page or the decode "
        "page saved. Nothing of it is run; what does not fit is refused.",
    )  # fmt: skip
    if file is not None and file.is_new and file.value is not None:
        session.keep_run(file.value, file.name)
    return file


def shapes_in_words(run: dict[str, Any]) -> str:
    """Say which trees a run had: n and d of the only one, else how many and how large."""
    if not run["shapes"]:
        return "–"
    sizes = [len(parents) for parents in run["shapes"]]
    if len(sizes) == 1:
        return f"n = {sizes[0]}, d = {TokenTree(run['shapes'][0]).depth}"
    return f"{count(len(sizes), 'tree')}, n = {min(sizes)} to {max(sizes)}"
