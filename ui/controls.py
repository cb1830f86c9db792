"""Small pieces that several pages share: files in and out, and a background job's progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.design import conditions
from ui import core_cache, jobs, session
from ui.literal import plain, safe_name
from ui.robustness.wording import NAMES

T = TypeVar("T")
VERIFIERS = {name: NAMES[name] for name in conditions.VERIFIERS}


@dataclass(frozen=True, slots=True)
class Upload(Generic[T]):
    """One uploaded file: its value or the one-line cause why not, and whether this run is the first to see it.

    Name and cause are safe to write into markdown.
    """

    name: str
    value: T | None
    error: str | None
    is_new: bool


def file_upload(
    label: str, types: Sequence[str], loads: Callable[[bytes, str], T], *, key: str, help: str
) -> Upload[T] | None:
    """Draw an uploader and read its file once.

    Args:
        types: extensions accepted, without dots.
        loads: reads (content, name); raises ValueError for a file it cannot use.

    Returns:
        None while nothing is uploaded.
    """
    file = st.file_uploader(label, type=list(types), key=key, help=help)
    if file is None:
        st.session_state.pop(f"{key}_read", None)
        return None
    seen = st.session_state.get(f"{key}_read")
    if seen is not None and seen[0] == file.file_id:
        return Upload(*seen[1:], is_new=False)
    value, error = None, None
    try:
        value = loads(file.getvalue(), file.name)
    except ValueError as caught:
        error = plain(" ".join(str(caught).split()))
    name = safe_name(file.name)
    st.session_state[f"{key}_read"] = (file.file_id, name, value, error)
    return Upload(name, value, error, is_new=True)


def number(value: float) -> str:
    """Write a count of tokens, also when it has no bound."""
    return "∞" if math.isinf(value) else f"{value:.2f}"


def short_reason(reason: str) -> str:
    """Return why a figure is missing where that fits a card, else that it was not measured here; safe in markdown."""
    return plain(reason) if len(reason) <= 28 else "not measured here"


def card(
    place: DeltaGenerator, label: str, value: str, against: str, *, help: str | None = None, signed: bool = False
) -> None:
    """Draw one number with what it compares with.

    Args:
        against: short enough for a quarter of the page, about 24 characters.
        signed: `against` begins with + or −, shown as better or worse.
    """
    place.metric(
        label,
        value,
        against,
        border=True,
        height="stretch",
        help=help,
        delta_color="normal" if signed else "off",
        delta_arrow="auto" if signed else "off",
    )


def shape_sliders(
    left: DeltaGenerator,
    right: DeltaGenerator,
    *,
    keys: tuple[str, str],
    default: tuple[int, int],
    size_help: str,
    smallest: int = 1,
) -> tuple[int, int]:
    """Draw the sliders of a tree's shape -> (n, d), both kept in the link.

    Args:
        keys: of the size and of the depth slider, which are their names in the link.
        size_help: ends the sentence that begins "Tokens in one target pass, ".
    """
    n = left.slider(
        "Size n",
        smallest,
        core_cache.MAX_SIZE,
        default[0],
        key=keys[0],
        bind="query-params",
        help=f"Tokens in one target pass, {size_help}",
    )
    d = right.slider(
        "Depth d, at most",
        1,
        core_cache.MAX_DEPTH,
        default[1],
        key=keys[1],
        bind="query-params",
        help="Edges on the longest path = draft passes per step. The paper's D counts levels: D = d + 1.",
    )
    return n, d


def start_job(name: str, label: str, work: Callable[[jobs.JobContext], Any], *, info: Any = None) -> None:
    """Submit work under this session's job name, unless one of that name is still active, and redraw the page."""
    current = session.job(name)
    if current is None or not current.active:
        try:
            session.set_job(name, jobs.engine_queue().submit(label, work, info=info))
        except jobs.Busy as busy:
            st.warning(str(busy), icon=":material/hourglass_top:")
            return
    st.rerun()


def job_panel(name: str) -> None:
    """Show the progress of an active job with a cancel button, or the cause why the last one failed."""
    job = session.job(name)
    if job is None:
        return
    if job.active:
        st.fragment(_job_progress, run_every=0.5)(name)
    elif job.state == "failed":
        st.error(f"{job.label} failed: {plain(job.error or '')}", icon=":material/error:")


def _job_progress(name: str) -> None:
    job = session.job(name)
    if job is None or not job.active:
        st.rerun()
        return
    if job.position:
        text = f"Waiting for the engine: {job.position} in line"
    else:
        left = "" if job.eta_sec is None else f" · about {job.eta_sec:.0f} s left"
        text = f"{plain(job.message or 'Loading the model pair')}{left}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(job.fraction, text=text)
        if st.button("Cancel", icon=":material/stop:", key=f"{name}_cancel", disabled=job.cancel_event.is_set()):
            job.cancel()
