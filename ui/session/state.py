"""The state of one browser session: one object, stored under one key of `st.session_state`."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.models.pair_spec import PairSpec

KEY = "studio"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Chosen(Generic[Value]):
    """A value that the user selected, uploaded or measured, and a description of where it comes from."""

    value: Value
    source: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run, a description of where it comes from, and the time when it was added, in seconds since 1970."""

    run: dict[str, Any]
    origin: str
    time: float = 0.0


@dataclass
class SessionState:
    """All state that outlives a page, except widget values; None stands for the default.

    Attributes:
        original: the vector that `acceptance` was derived from; None if it was not modified.
        sampling: temperature and top-p.
        sampling_page: the page that last drew the sampling controls.
        acceptance: the vector that was chosen; None for the one that applies to the models planned for.
        profile: the profile that was chosen; None for this machine.
        pass_times: for each checked profile, the measured ÷ profiled time of a target pass here; 0 if unknown.
        link_read: whether the URL's parameters were read.
        plan: the id of the kept plan, and the choices that it contains; None for the defaults.
        texts: what the user wrote into text fields, by their keys.
        shape: (size, depth) selected by the user; None for the best one.
        shape_to_show: whether the sliders must be moved to the current shape.
        tree: the tree imported by the user; None for the best tree of the shape.
        contradiction: the key of a profile, and how the last run contradicted the plan made with it.
        ended_jobs: ids of the jobs whose end was already handled.
        conversation_after: the last decode job before the conversation began.
        chat_sent: a message to be sent to the model.
        returned_job: the job whose unanswered message was already put back.
    """

    pair: PairSpec = field(default_factory=PairSpec)
    sampling: tuple[float, float] = (0.0, 1.0)
    sampling_page: str | None = None
    acceptance: Chosen[AcceptanceVector] | None = None
    original: Chosen[AcceptanceVector] | None = None
    profile: Chosen[HardwareProfile] | None = None
    own_vectors: dict[str, Chosen[AcceptanceVector]] = field(default_factory=dict)
    own_profiles: dict[str, Chosen[HardwareProfile]] = field(default_factory=dict)
    pass_times: dict[str, float] = field(default_factory=dict)
    link_read: bool = False
    plan: tuple[str, list[Any]] | None = None
    texts: dict[str, str] = field(default_factory=dict)
    shape: tuple[int, int] | None = None
    shape_to_show: bool = False
    tree: Chosen[TokenTree] | None = None
    tree_kind: str = "static"
    last_run: dict[str, Any] | None = None
    contradiction: tuple[str, str] | None = None
    runs: dict[str, StoredRun] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    ended_jobs: frozenset[str] = frozenset()
    conversation: Any = None
    conversation_after: str | None = None
    chat_sent: str | None = None
    returned_job: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    earlier_answers: dict[str, Any] = field(default_factory=dict)
    replay: Any = None
    sweep_folder: str | None = None
    server_readings: dict[str, bytes] = field(default_factory=dict)


def state() -> SessionState:
    """Return the state of the session that this script run belongs to."""
    return st.session_state.setdefault(KEY, SessionState())
