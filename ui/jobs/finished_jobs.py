"""Transfer of finished jobs' results to the session that started them; every page does this first."""

from collections.abc import Callable

import streamlit as st

from sequoia_core import HardwareProfile
from ui.jobs import conversation, session_jobs
from ui.jobs.jobs import Job
from ui.runs import contradictions, run_store
from ui.session import predictions, session, sweeps, tree_in_use
from ui.session.state import state


def adopt_finished_jobs() -> None:
    """Transfer the results of the jobs that ended since the last call to this session."""
    for name, job in session_jobs.pop_ended_jobs():
        if job.result is not None:
            ADOPTERS[name](job)


def _use_vector(job: Job) -> None:
    if job.state != "failed":
        session.set_measured_acceptance(job.result, *job.info)
        _toast_in_use(job)


def _use_profile(job: Job) -> None:
    if job.state != "failed":
        _set_profile(job.result, job.info)
        _toast_in_use(job)


def _set_profile(hardware: HardwareProfile, source: str) -> None:
    session.set_measured_profile(hardware, source)
    state().pass_times[predictions.profile_key(hardware)] = 1.0  # just measured, so there is nothing to check


def _store_check(job: Job) -> None:
    state().pass_times[job.info] = job.result


def _store_run(job: Job) -> None:
    if job.step_count:  # the steps of a failed run are shown, too
        run_store.set_last_run(job.result)
        contradictions.note_contradiction(job.result)
        conversation.add_answer(job)


def _store_race(job: Job) -> None:
    for run in job.result.runs.values():
        run_store.add_run(run, "from a race")


def _use_chain(job: Job) -> None:
    """Store everything that the chain measured, even if it did not finish; its run replaces an earlier decode's."""
    result = job.result
    if result.acceptance is not None:
        source = f"measured here on the {job.info}, temperature 0"
        session.set_measured_acceptance(result.acceptance, source, "measured, T = 0")
    if result.profile is not None:
        _set_profile(result.profile, f"measured here on the {job.info}")
        tree_in_use.set_size_and_depth(None)
    if result.runs and result.runs[0]["steps"]:
        run_store.set_last_run(result.runs[0])
        contradictions.note_contradiction(result.runs[0])
        session_jobs.forget_decode(older_than=job)


def _store_replay(job: Job) -> None:
    state().replay = job.result


def _show_sweep(job: Job) -> None:
    if job.result.state.rows:
        sweeps.request_folder(job.result.folder)


def _store_losslessness(job: Job) -> None:
    state().evidence["losslessness"] = job.result


def _toast_in_use(job: Job) -> None:
    words = "in use" if job.state == "done" else "cancelled; its partial result is in use"
    st.toast(f"{job.label}: {words}.", icon=":material/check_circle:")


ADOPTERS: dict[str, Callable[[Job], None]] = {
    "measure": _use_vector,
    "profile": _use_profile,
    "check": _store_check,
    "decode": _store_run,
    "chain": _use_chain,
    "race": _store_race,
    "replay": _store_replay,
    "sweep": _show_sweep,
    "losslessness": _store_losslessness,
}
