"""Controls for a background job: start, progress with the estimated time left, cancel, and the cause of a failure."""

import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from ui.jobs import engine_queue, session_jobs
from ui.jobs.jobs import Job, JobContext
from ui.markdown import escaped
from ui.phrases import duration

SILENT_SEC = 2.0  # a shorter job does not show its time
JOB_POLL_SEC = 2.0  # each update makes the browser lay out the page, possibly on cores that are being measured


def start_job(name: str, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> None:
    """Submit work and rerun the page."""
    if submit_job(name, label, work, info=info):
        st.rerun()


def submit_job(name: str, label: str, work: Callable[[JobContext], Any], *, info: Any = None) -> bool:
    """Submit work under a key of `finished_jobs.ADOPTERS`; if the queue is full, show a warning and return False."""
    if not is_active(name):
        try:
            session_jobs.add_job(name, engine_queue.engine_queue().submit(label, work, info=info))
        except engine_queue.Busy as busy:
            st.warning(str(busy), icon=":material/hourglass_top:")
            return False
    return True


def is_active(name: str) -> bool:
    """Return whether this session's job with that name is waiting or running."""
    job = session_jobs.find_job(name)
    return job is not None and job.active


def draw_job(name: str) -> None:
    """Show an active job's progress with a cancel button, or the reason why the last job failed."""
    job = session_jobs.find_job(name)
    if job is None:
        return
    if job.active:
        st.fragment(_follow, run_every=JOB_POLL_SEC)(name)
    elif job.state == "failed":
        st.error(f"{job.label} failed: {escaped(job.error or '')}", icon=":material/error:")


def _follow(name: str) -> None:
    job = session_jobs.find_job(name)
    if job is None or not job.active:
        st.rerun()
        return
    draw_progress(name, job)


def draw_progress(name: str, job: Job) -> None:
    """Show an active job's progress with a cancel button."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(job.fraction, text=progress_text(job))
        if st.button("Cancel", icon=":material/stop:", key=f"{name}_cancel", disabled=job.cancel_event.is_set()):
            job.cancel()


def progress_text(job: Job) -> str:
    """Describe an active job's status and its estimated time left."""
    if job.position:
        waited = time.monotonic() - job.created
        return f"Waiting for the engine: number {job.position} in the queue · {waited:.0f} s so far"
    message = job.message or "Loading the model pair"
    parts = [escaped(f"{message[0].upper()}{message[1:]}")]
    if job.seconds >= SILENT_SEC:  # so that a long pass is not mistaken for one that hangs
        parts.append(f"{job.seconds:.0f} s so far")
    if (left := job.eta_sec) is not None:
        parts.append(f"{duration(left)} left")
    return " · ".join(parts)
