"""Replay of a request log, run as a job by the engine's worker; long logs take one or two minutes.

Requires the optional package `dynamic_trees`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.files.faults import Cancelled
from sequoia_core.files.response_logs import RecordedRequest, load_responses
from ui.jobs.jobs import Job, JobContext
from ui.session import shipped

if TYPE_CHECKING:
    from sequoia_extras.dynamic_trees.lookup_replay import LookupReport

EXAMPLE_NAME = "the demo target's greedy answers to 32 shipped prompts"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A report on how lookup trees would have performed on a log.

    Attributes:
        name: the log's name, safe to show as markdown.
        requests: number of replayed requests.
        left_out: number of requests that were not replayed because they exceed the limit.
        exact: whether all requests were logged as token ids rather than text.
    """

    name: str
    report: LookupReport
    requests: int
    left_out: int
    exact: bool


def replay_work(recorded: Sequence[RecordedRequest], name: str, tokenizer: Path) -> Callable[[JobContext], Replayed]:
    """Return a job that replays a log and stores no partial results; `tokenizer` encodes requests logged as text."""

    def work(context: JobContext) -> Replayed:
        from sequoia_extras.dynamic_trees.lookup_replay import encode_requests, replay_log, text_encoder

        encoded = encode_requests(
            recorded, text_encoder(tokenizer), progress=context.subprogress(0.0, 0.1), cancel=context.cancel
        )
        try:
            report = replay_log(encoded.requests, progress=context.subprogress(0.1, 1.0), cancel=context.cancel)
        except ValueError:
            if context.cancel.is_set():  # cancelled before the first answer was replayed
                raise Cancelled from None
            raise
        if context.cancel.is_set():
            raise Cancelled
        return Replayed(name, report, len(encoded.requests), encoded.left_out, encoded.exact)

    return work


@st.cache_resource(show_spinner="Replaying the example…")
def example_replay() -> Replayed | None:
    """Replay the shipped log; return None if it is missing."""
    path = shipped.ASSETS / "responses" / "demo-greedy.jsonl"
    return replay_work(load_responses(path), EXAMPLE_NAME, path)(JobContext(Job("example"))) if path.is_file() else None
