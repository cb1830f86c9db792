"""The jobs that one browser session has started, by name; all are cancelled when its tab goes away."""

import streamlit as st

from ui.jobs.jobs import Job
from ui.session.state import get, put


def job(name: str) -> Job | None:
    """Return this session's job of that name, running or over."""
    return get("jobs", {}).get(name)


def add(name: str, job: Job) -> None:
    """Remember a job of this session in place of the last one of that name."""
    alive = _cancelled_with_the_tab()
    alive[:] = [*(old for old in alive if old.active), job]
    put("jobs", {**get("jobs", {}), name: job})


def forget(name: str, *, older_than: Job) -> None:
    """Forget a job that is over and began before another one: what it found has been replaced."""
    held = job(name)
    if held is not None and not held.active and (held.started or 0.0) < (older_than.started or 0.0):
        put("jobs", {key: value for key, value in get("jobs", {}).items() if key != name})


def current() -> Job | None:
    """Return this session's active job, else the one that began last."""
    known = list(get("jobs", {}).values())
    return max(known, key=lambda job: (job.active, job.started or 0.0), default=None)


def newly_ended() -> list[tuple[str, Job]]:
    """Return the jobs that ended since the last call, with their names, in the order in which they ended."""
    seen = get("jobs_seen_ended", frozenset())
    ended = [(name, job) for name, job in get("jobs", {}).items() if not job.active]
    put("jobs_seen_ended", frozenset(job.id for _, job in ended))
    return sorted((item for item in ended if item[1].id not in seen), key=lambda item: item[1].ended or 0.0)


def _cancel_all(jobs: list[Job]) -> None:
    """Set cancel flags only: this runs on the server's event loop."""
    for job in jobs:
        job.cancel()


@st.cache_resource(show_spinner=False, scope="session", on_release=_cancel_all)
def _cancelled_with_the_tab() -> list[Job]:
    """Return this session's list of jobs; Streamlit hands it to `_cancel_all` when the tab goes away."""
    return []
