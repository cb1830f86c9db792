"""What each kind of job brings into the session that started it, once it is over; every page adopts it."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from ui.jobs import conversation, replays, session_jobs
from ui.jobs.jobs import Job
from ui.session import evidence, session, sweeps, tree_in_use


def adopt_finished_jobs() -> None:
    """Bring the results of this session's jobs since the last call into the session."""
    for name, job in session_jobs.newly_ended():
        if job.result is not None:
            ADOPTERS[name](job)


def _use_vector(job: Job) -> None:
    if job.state != "failed":
        session.set_acceptance(job.result, *job.info)
        _say_in_use(job)


def _use_profile(job: Job) -> None:
    if job.state != "failed":
        session.set_measured_profile(job.result, job.info)
        _say_in_use(job)


def _keep_run(job: Job) -> None:
    if job.step_count:  # also of a run that failed: the steps before are worth looking at
        session.set_last_run(job.result)
        conversation.join(job)


def _keep_runs(job: Job) -> None:
    for run in job.result.runs.values():
        session.keep_run(run, "from a race")


def _use_chain(job: Job) -> None:
    """Use what the whole chain has measured, however it ended; its run takes the place of an earlier decode."""
    found = job.result
    if found.acceptance is not None:
        session.set_acceptance(found.acceptance, f"measured here on the {job.info}, temperature 0", "measured, T = 0")
    if found.profile is not None:
        session.set_measured_profile(found.profile, f"measured here on the {job.info}")
        tree_in_use.set_size_and_depth(None)
    if found.runs and found.runs[0]["steps"]:
        session.set_last_run(found.runs[0])
        session_jobs.forget("decode", older_than=job)


def _keep_replay(job: Job) -> None:
    replays.keep(job.result)


def _show_sweep(job: Job) -> None:
    if job.result.state.rows:
        sweeps.show(job.result.folder)


def _keep_evidence(part: str, job: Job) -> None:
    evidence.keep(part, job.result)


def _say_in_use(job: Job) -> None:
    kept = "in use" if job.state == "done" else "cancelled, what it had is in use"
    st.toast(f"{job.label}: {kept}.", icon=":material/check_circle:")


ADOPTERS: dict[str, Callable[[Job], None]] = {
    "measure": _use_vector,
    "profile": _use_profile,
    "decode": _keep_run,
    "chain": _use_chain,
    "race": _keep_runs,
    "replay": _keep_replay,
    "sweep": _show_sweep,
    "growth": partial(_keep_evidence, "growth"),
    **{evidence.job_name(part): partial(_keep_evidence, part) for part in evidence.PARTS},
}
