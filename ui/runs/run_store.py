"""The runs that a browser session decoded or opened, newest first, and those kept from earlier sessions."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ui.kept import store
from ui.runs import run_files
from ui.session.state import StoredRun, state

MAX_RUNS = store.DEFAULT_LIMIT
PROMPT_CHARS = 60  # of a prompt's last line, in lists
MAX_NODES = 1_000_000  # total over the trees of all listed runs; about 100 MB of records
_LOG = logging.getLogger(__name__)


def set_last_run(run: dict[str, Any]) -> None:
    """Store a finished decode as the last run, for other pages."""
    state().last_run = run
    add_run(run, "decoded here")


def add_run(run: dict[str, Any], origin: str) -> None:
    """Store a run as the newest one, and keep it for later sessions."""
    others = [(key, stored) for key, stored in state().runs.items() if key != run["id"]]
    state().runs = _limited([(run["id"], StoredRun(run, origin, time.time())), *others])
    prompt = run["prompt"].strip().splitlines()[-1:]
    store.keep("runs", run_files.run_to_bytes(run), name=origin, source="".join(prompt)[:PROMPT_CHARS], id=run["id"])


def list_runs() -> dict[str, StoredRun]:
    """Return this session's runs, newest first, after adding the kept ones."""
    own = state().runs
    kept = {entry.id: entry for entry in store.entries("runs") if entry.id not in own}
    times = {key: each.time for key, each in (own | kept).items()}
    newest = sorted(times, key=times.__getitem__, reverse=True)
    state().runs = _limited((key, own[key] if key in own else _kept_run(kept[key])) for key in newest)
    return state().runs


def find_run(run_id: str) -> dict[str, Any] | None:
    """Return a run of this session, or a kept one, which joins this session's; None if there is none with this id."""
    if run_id not in state().runs:
        kept = next((_kept_run(entry) for entry in store.entries("runs") if entry.id == run_id), None)
        if kept is None:
            return None
        state().runs = state().runs | {run_id: kept}
    return state().runs[run_id].run


def _kept_run(entry: store.Result) -> StoredRun | None:
    run = _read(str(entry.path), entry.time)
    return None if run is None else StoredRun(run, entry.name, entry.time)


@lru_cache(maxsize=MAX_RUNS)
def _read(path: str, written: float) -> dict[str, Any] | None:
    """Return a kept run; None if its file is damaged or was just deleted."""
    try:
        return run_files.load_run(path)
    except ValueError as error:
        _LOG.warning("a kept run cannot be read: %s", error)
        return None


def _limited(newest: Iterable[tuple[str, StoredRun | None]]) -> dict[str, StoredRun]:
    """Return runs without the oldest ones beyond `MAX_RUNS` runs or `MAX_NODES` nodes; None is left out."""
    limited: dict[str, StoredRun] = {}
    nodes = 0
    for key, stored in newest:
        if stored is None:
            continue
        nodes += sum(len(step["tokens"]) for step in stored.run["steps"])
        if limited and (len(limited) == MAX_RUNS or nodes > MAX_NODES):
            break
        limited[key] = stored
    return limited


def rename_run(run_id: str, name: str) -> None:
    """Replace a run's description."""
    if run_id in state().runs:
        state().runs = state().runs | {run_id: replace(state().runs[run_id], origin=name)}
    store.rename("runs", run_id, name)


def delete_run(run_id: str) -> None:
    """Delete a run, including its kept file."""
    state().runs = {key: stored for key, stored in state().runs.items() if key != run_id}
    store.delete("runs", run_id)
