"""The log that ships with the app: the demo target's greedy answers, replayed once for all sessions."""

from __future__ import annotations

import streamlit as st

from sequoia_core.files.response_logs import load_responses
from ui.jobs.jobs import Job, JobContext
from ui.lookup.replay_job import Replayed, replay_work
from ui.session import shipped

NAME = "the demo target's greedy answers to 32 shipped prompts"


@st.cache_resource(show_spinner="Replaying the example…")
def replayed() -> Replayed | None:
    """Return the shipped log replayed; None where it is not there."""
    path = shipped.ASSETS / "responses" / "demo-greedy.jsonl"
    return replay_work(load_responses(path), NAME, path)(JobContext(Job("example"))) if path.is_file() else None
