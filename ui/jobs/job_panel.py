"""A background job on the page that started it: starting, progress with an estimate, cancelling, why it failed."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from ui.jobs import engine_queue, session_jobs
from ui.jobs.jobs import Job, JobContext
from ui.markdown import escaped

POLL_SEC = 2.0  # each answer makes the browser lay out its page, on cores that may be measured


def start(name: str, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> None:
    """Submit work and redraw the page."""
    if submit(name, label, work, info=info):
        st.rerun()


def submit(name: str, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> bool:
    """Submit work under one of `finished_jobs.ADOPTERS` -> whether one of that name waits or runs, and say if not."""
    if not is_active(name):
        try:
            session_jobs.add(name, engine_queue.engine_queue().submit(label, work, info=info))
        except engine_queue.Busy as busy:
            st.warning(str(busy), icon=":material/hourglass_top:")
            return False
    return True


def is_active(name: str) -> bool:
    """Whether this session's job of that name waits or runs."""
    job = session_jobs.job(name)
    return job is not None and job.active


def draw(name: str) -> None:
    """Show the progress of an active job with a cancel button, or the cause why the last one failed."""
    job = session_jobs.job(name)
    if job is None:
        return
    if job.active:
        st.fragment(_follow, run_every=POLL_SEC)(name)
    elif job.state == "failed":
        st.error(f"{job.label} failed: {escaped(job.error or '')}", icon=":material/error:")


def _follow(name: str) -> None:
    job = session_jobs.job(name)
    if job is None or not job.active:
        st.rerun()
        return
    progress_and_cancel(name, job)


def progress_and_cancel(name: str, job: Job) -> None:
    """Show how far an active job is, and a button that cancels it."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(job.fraction, text=progress_text(job))
        if st.button("Cancel", icon=":material/stop:", key=f"{name}_cancel", disabled=job.cancel_event.is_set()):
            job.cancel()


def progress_text(job: Job) -> str:
    """Say what an active job does, and how long that will take."""
    if job.position:
        return f"Waiting for the engine: {job.position} in line"
    left = "" if job.eta_sec is None else f" · about {job.eta_sec:.0f} s left"
    return f"{escaped(job.message or 'Loading the model pair')}{left}"
