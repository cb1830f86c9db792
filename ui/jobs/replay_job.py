"""A log of requests replayed, as a job for the engine's worker: no model, but long logs take a minute or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core.files.faults import Cancelled
from ui.jobs.jobs import JobContext

if TYPE_CHECKING:
    from sequoia_core.files.response_logs import Recorded
    from sequoia_core.studies.lookup_replay import LookupReport


@dataclass(frozen=True, slots=True)
class Replayed:
    """A log and what lookup trees would have done on it.

    Attributes:
        name: of the log, safe in markdown.
        requests, left_out: how many were replayed, and how many of the last were too many.
        exact: whether all came as token ids.
    """

    name: str
    report: LookupReport
    requests: int
    left_out: int
    exact: bool


def replay_work(recorded: Sequence[Recorded], name: str, tokenizer: Path) -> Callable[[JobContext], Replayed]:
    """Return the work of replaying a log; cancelled, it leaves nothing. `tokenizer` is for requests as text."""

    def work(context: JobContext) -> Replayed:
        from sequoia_core.studies.lookup_replay import encode_requests, replay_log, text_encoder

        watched = {"cancel": context.cancel}
        encoded = encode_requests(recorded, text_encoder(tokenizer), progress=context.part(0.0, 0.1), **watched)
        try:
            report = replay_log(encoded.requests, progress=context.part(0.1, 1.0), **watched)
        except ValueError:
            if context.cancel.is_set():  # before the first answer was through
                raise Cancelled from None
            raise
        if context.cancel.is_set():
            raise Cancelled
        return Replayed(name, report, len(encoded.requests), encoded.left_out, encoded.exact)

    return work
