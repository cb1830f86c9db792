"""A sweep run by the app: a plan, the folder that it fills, and the job behind it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from ui import controls
from ui.draft.sweep_source import typed_folder
from ui.jobs import job_panel, session_jobs
from ui.jobs.sweep_job import Swept, sweep_work
from ui.markdown import escaped
from ui.phrases import count
from ui.session import session, shipped

if TYPE_CHECKING:
    from sequoia_core.sweeps.plan import Plan

MOST_CHARS = 100_000
DOMAINS = {"not-looping": "code", "prompts": "code"}  # what other shipped files hold is their name


def section() -> None:
    """Offer to run a sweep, and show its progress."""
    active = job_panel.is_active("sweep")
    with st.expander("Run a sweep here", icon=":material/playlist_play:", expanded=active, key="compare_here"):
        text = st.text_area(
            "Plan",
            example(),
            key=f"sweep_plan_{session.pair_name()}",
            height=320,
            max_chars=MOST_CHARS,
            help="TOML, as `sequoia sweep` takes it, with whole paths. The first lines are of the pair in use.",
        )
        folder = st.text_input(
            "Folder for the results",
            str(Path.home() / "sequoia-sweep"),
            key="sweep_folder",
            max_chars=4096,
            help="What is there already is not measured again: a sweep that was cancelled goes on where it was.",
        )
        retry = st.checkbox("Try again what failed before", key="sweep_retry")
        with st.container(horizontal=True):
            check = st.button("Check", key="sweep_check", icon=":material/rule:")
            run = controls.primary_button("Run", key="sweep_start", icon=":material/play_arrow:", disabled=active)
        if check or run:
            try:
                plan, jobs, rows = checked(text, folder, retry_failed=retry)
            except ValueError as error:
                st.error(escaped(str(error)), icon=":material/error:")
            else:
                if jobs and run:
                    job_panel.start("sweep", "Sweep", sweep_work(plan, str(typed_folder(folder)), retry_failed=retry))
                else:
                    words = f"The plan is valid: {count(jobs, 'job')} to do, {rows}."
                    st.success(words, icon=":material/check_circle:")
        job_panel.draw("sweep")
        _ended()


def _ended() -> None:
    """Say what the last sweep of this session left."""
    job = session_jobs.job("sweep")
    if job is None or job.active or not isinstance(job.result, Swept):
        return
    state = job.result.state
    words = f"{state.done} of {count(state.jobs, 'job')} done, {state.failed} failed."
    st.caption(f":material/folder: {escaped(job.result.folder)}: {words}")
    for words in dict.fromkeys(state.faults.values()):
        st.warning(escaped(words), icon=":material/warning:")
        break


def checked(text: str, folder: str, *, retry_failed: bool = False) -> tuple[Plan, int, str]:
    """Return a plan, how many jobs it has to do in a folder, and in words how many rows are there or failed."""
    from sequoia_core.sweeps.plan import read_plan
    from sequoia_core.sweeps.results import Results
    from sequoia_core.sweeps.run import missing_jobs

    results = Results(typed_folder(folder))
    with st.spinner("Checking the plan…"), tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "plan.toml"
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            plan = read_plan(path)
        except ValueError as error:
            raise ValueError(str(error).replace(f"{path}: ", "Plan: ")) from error
        todo = missing_jobs(plan, results, retry_failed=retry_failed)
    failed = len(todo.failed_before)
    there = count(todo.skipped - failed, "row") + " there"
    return plan, len(todo.jobs), there + (f", {failed:,} failed before" if failed else "")


def example() -> str:
    """Return a small plan for the pair in use."""
    spec = session.pair_spec()
    pair = {"name": session.pair_name()[:80], **{key: value for key, value in asdict(spec).items() if value}}
    pair["drafters"] = ["lookup"] if spec.is_alone else ["model", "lookup", "both"]
    settings = {"temperatures": [0.0, 0.6], "new_tokens": 64, "max_size": [4, 8, 16], "profile": not spec.is_alone}
    files = sorted((shipped.ASSETS / "prompts").glob("*.jsonl"))
    prompts = [
        {"domain": DOMAINS.get(path.stem, path.stem), "file": str(path), "count": 12}
        for path in [path for path in files if path.stem != "prompts"] or files
    ]
    parts = [("", settings), ("[[pairs]]\n", pair), *(("[[prompts]]\n", part) for part in prompts)]
    # ensure_ascii: JSON's escapes of characters beyond 16 bits are none of TOML's
    return "\n".join(
        head + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in part.items())
        for head, part in parts
    )
