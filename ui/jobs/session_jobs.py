"""A browser session's jobs by name, and sessions that are resumed when their tab is reloaded.

Streamlit starts a new session for a reloaded tab. The state of the old one, including its jobs, is handed over to the
new one if that shows the same plan in the same browser within `OUTLIVES_SEC`; after that, its jobs are cancelled.
"""

import threading
from dataclasses import dataclass
from itertools import cycle

import streamlit as st

from ui.jobs.jobs import Job
from ui.session.state import KEY, SessionState, state

OUTLIVES_SEC = 120.0
BROWSER_COOKIE = "_streamlit_xsrf"  # set by Streamlit; differs between browsers
_LOCK = threading.Lock()


@dataclass(eq=False)
class _Tab:
    """An open tab's session, and the secret that identifies its browser."""

    browser: str
    state: SessionState

    def plan(self) -> str | None:
        return None if self.state.plan is None else self.state.plan[0]


_LEFT: list[_Tab] = []  # closed tabs, and tabs that lost their connection


def find_job(name: str) -> Job | None:
    """Return this session's job with that name, active or finished."""
    return state().jobs.get(name)


def add_job(name: str, job: Job) -> None:
    """Store a job of this session, replacing the last one with that name."""
    state().jobs = {**state().jobs, name: job}


def forget_decode(*, older_than: Job) -> None:
    """Forget a finished decode if it began before `older_than`, whose result supersedes its own."""
    old = find_job("decode")
    if old is not None and not old.active and (old.started or 0.0) < (older_than.started or 0.0):
        state().jobs = {key: value for key, value in state().jobs.items() if key != "decode"}


def current_job() -> Job | None:
    """Return this session's active job, or else the last one that began."""
    known = list(state().jobs.values())
    return max(known, key=lambda job: (job.active, job.started or 0.0), default=None)


def pop_ended_jobs() -> list[tuple[str, Job]]:
    """Return the jobs that ended since the last call, with their names, in the order in which they ended."""
    seen = state().ended_jobs
    ended = [(name, job) for name, job in state().jobs.items() if not job.active]
    state().ended_jobs = frozenset(job.id for _, job in ended)
    return sorted((item for item in ended if item[1].id not in seen), key=lambda item: item[1].ended or 0.0)


def resume_session() -> None:
    """Take over the state of a tab that was reloaded or lost its connection; every page calls this first."""
    browser = _browser()
    plan = st.query_params.get("plan")
    with _LOCK:
        if KEY not in st.session_state:
            reloaded = next((tab for tab in reversed(_LEFT) if (tab.browser, tab.plan()) == (browser, plan)), None)
            if reloaded is not None:
                st.session_state[KEY] = reloaded.state
                st.session_state.update(reloaded.state.texts)
        _LEFT[:] = [tab for tab in _LEFT if tab.state is not state()]
    _open_tab(browser)


def _browser() -> str:
    """Return the secret in Streamlit's cookie, which identifies the browser; empty if there is none."""
    parts = st.context.cookies.get(BROWSER_COOKIE, "").split("|")  # version, mask, masked secret, time
    try:
        mask, masked = map(bytes.fromhex, parts[1:3])  # each response masks the secret anew
    except ValueError:
        return ""
    return bytes(byte ^ key for byte, key in zip(masked, cycle(mask), strict=False)).hex()


def _leave(tab: _Tab) -> None:
    """Start the time in which a closed tab can be resumed, without waiting: this runs on the server's event loop."""
    with _LOCK:
        _LEFT.append(tab)
    timer = threading.Timer(OUTLIVES_SEC, _forget, [tab])
    timer.daemon = True
    timer.start()


def _forget(tab: _Tab) -> None:
    """Cancel the jobs of a closed tab that was not resumed."""
    with _LOCK:
        if tab not in _LEFT:
            return
        _LEFT.remove(tab)
    for job in tab.state.jobs.values():
        job.cancel()


@st.cache_resource(show_spinner=False, scope="session", on_release=_leave)
def _open_tab(_browser: str) -> _Tab:
    """Return the value that Streamlit passes to `_leave` when the tab is closed."""
    return _Tab(_browser, state())
