"""The source of a sweep, a shipped one or a results folder, and the form that runs one.

Requires the optional package `sweeps`.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import streamlit as st

from sequoia_extras.sweeps.plan import SweepPlan
from ui import controls
from ui.cards import draw_error
from ui.jobs import job_panel, session_jobs
from ui.jobs.sweep_job import Swept, sweep_work
from ui.markdown import escaped
from ui.phrases import count
from ui.session import session, shipped, sweeps

MAX_PLAN_CHARS = 100_000
DOMAIN_NAMES = {"not-looping": "code", "prompts": "code"}  # the other shipped files are named after their domain


def run_sweep_section() -> None:
    """Draw the controls for running a sweep, and its progress."""
    active = job_panel.is_active("sweep")
    with st.expander("Run a sweep here", icon=":material/playlist_play:", expanded=active, key="compare_here"):
        text = st.text_area(
            "Plan",
            example_plan(),
            key=f"sweep_plan_{session.pair_name()}",
            height=320,
            max_chars=MAX_PLAN_CHARS,
            help="TOML for `sequoia sweep`, with absolute paths. The example describes the current pair.",
        )
        folder = st.text_input(
            "Folder for the results",
            str(Path.home() / "sequoia-sweep"),
            key="sweep_folder",
            max_chars=4096,
            help="Existing rows are not measured again, so a cancelled sweep continues where it stopped.",
        )
        retry = st.checkbox("Retry rows that failed before", key="sweep_retry")
        with st.container(horizontal=True):
            check = st.button("Check", key="sweep_check", icon=":material/rule:")
            run = controls.primary_button("Run", key="sweep_start", icon=":material/play_arrow:", disabled=active)
        if check or run:
            try:
                plan, jobs, rows = check_plan(text, folder, retry_failed=retry)
            except ValueError as error:
                draw_error(error)
            else:
                if jobs and run:
                    job_panel.start_job(
                        "sweep", "Sweep", sweep_work(plan, str(typed_folder(folder)), retry_failed=retry)
                    )
                else:
                    words = f"The plan is valid: {count(jobs, 'job')} to run, {rows}."
                    st.success(words, icon=":material/check_circle:")
        job_panel.draw_job("sweep")
        _last_sweep()


def _last_sweep() -> None:
    """Describe the last sweep of this session."""
    job = session_jobs.find_job("sweep")
    if job is None or job.active or not isinstance(job.result, Swept):
        return
    state = job.result.state
    words = f"{state.done} of {count(state.jobs, 'job')} done, {state.failed} failed."
    st.caption(f":material/folder: {escaped(job.result.folder)}: {words}")
    if state.faults:
        st.warning(escaped(next(iter(state.faults.values()))), icon=":material/warning:")


def check_plan(text: str, folder: str, *, retry_failed: bool = False) -> tuple[SweepPlan, int, str]:
    """Return the plan, the number of jobs still to run, and a description of the folder's existing and failed rows."""
    from sequoia_extras.sweeps.plan import read_plan
    from sequoia_extras.sweeps.results import Results
    from sequoia_extras.sweeps.run import missing_jobs

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
    existing = f"{count(todo.skipped - failed, 'row')} existing"
    if failed:
        existing += f", {failed:,} failed before"
    return plan, len(todo.jobs), existing


def example_plan() -> str:
    """Return a small plan for the current pair, as TOML."""
    spec = session.pair_spec()
    pair = {"name": session.pair_name()[:80], **{key: value for key, value in asdict(spec).items() if value}}
    pair["drafters"] = ["lookup"] if spec.is_alone else ["model", "lookup", "both"]
    settings = {"temperatures": [0.0, 0.6], "new_tokens": 64, "max_size": [4, 8, 16], "profile": not spec.is_alone}
    files = sorted((shipped.ASSETS / "prompts").glob("*.jsonl"))
    prompts = [
        {"domain": DOMAIN_NAMES.get(path.stem, path.stem), "file": str(path), "count": 12}
        for path in [path for path in files if path.stem != "prompts"] or files
    ]
    parts = [("", settings), ("[[pairs]]\n", pair), *(("[[prompts]]\n", part) for part in prompts)]
    # TOML does not allow surrogate escapes, so ensure_ascii is off.
    return "\n".join(
        head + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in part.items())
        for head, part in parts
    )


SHIPPED, FOLDER = ("Shipped", "Folder")


def typed_folder(name: str) -> Path:
    """Return the folder that the user typed."""
    if not name.strip():
        raise ValueError("Folder: enter the results folder")
    try:
        return Path(name.strip()).expanduser()
    except RuntimeError as error:
        raise ValueError(f"Folder: found {name.strip()[:60]!r} ({error}), expected a path") from error


def sweep_source_controls() -> Path | None:
    """Draw the source controls; return the sweep's folder, or None if there is none yet."""
    if (arrived := sweeps.pop_requested_folder()) is not None:
        st.session_state["compare_way"] = FOLDER
        st.session_state["compare_folder"] = arrived
    found = shipped.sweeps()
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    with left:
        source = controls.source_picker("Which sweep", [SHIPPED, FOLDER] if found else [FOLDER], key="compare_way")
    if source == FOLDER:
        name = right.text_input(
            "Results folder",
            key="compare_folder",
            persist_state="session",
            max_chars=4096,
            placeholder="/path/to/results",
            label_visibility="collapsed",
            help="A folder on the machine that runs the app, as passed to `sequoia sweep --out`.",
        )
        if name.strip():
            try:
                return typed_folder(name)
            except ValueError as error:
                draw_error(error)
                return None
        st.info(
            "Enter the results folder of a sweep. Run one with `sequoia sweep PLAN.toml --out FOLDER`, or below.",
            icon=":material/folder_open:",
        )
        return None
    name = right.selectbox("Sweep", list(found), key="compare_sweep", bind="query-params", label_visibility="collapsed")
    return found[name]
