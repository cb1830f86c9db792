"""Logs that were replayed: this session's last one, and the demo target's greedy answers that ship with the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.files.response_logs import load_responses
from ui.jobs.jobs import Job, JobContext
from ui.jobs.replay_job import Replayed, replay_work
from ui.session import shipped
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core.design.conditions import Conditions

NAME = "the demo target's greedy answers to 32 shipped prompts"


def last() -> Replayed | None:
    """Return the log that this session replayed last; None before the first."""
    return get("replayed")


def keep(found: Replayed) -> None:
    """Keep a replayed log in place of the last one."""
    put("replayed", found)


def of_target(held: Conditions) -> Replayed | None:
    """Return the log replayed last, else the example where it is one of that target and temperature."""
    return last() or (example() if (held.target, held.temperature) == ("demo target", 0.0) else None)


@st.cache_resource(show_spinner="Replaying the example…")
def example() -> Replayed | None:
    """Return the shipped log replayed; None where it is not there."""
    path = shipped.ASSETS / "responses" / "demo-greedy.jsonl"
    return replay_work(load_responses(path), NAME, path)(JobContext(Job("example"))) if path.is_file() else None
