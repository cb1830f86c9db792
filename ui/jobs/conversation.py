"""A browser session's conversation with a model; each answer is added when its run ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sequoia_core.models.chat import Turn
from ui.jobs import session_jobs
from ui.jobs.jobs import Job
from ui.session import session
from ui.session.state import state

CUT_REASONS = {
    "length": "Cut off at the requested number of new tokens.",
    "context": "Cut off: the target's context is full. Start a new conversation.",
    "cancelled": "Stopped.",
    "failed": "Cut off: the run failed.",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and its answer; `cut` is a key of `CUT_REASONS`, or empty if the model ended the answer."""

    asked: str
    answer: str
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The exchanges with a pair; the system prompt is not included because it may change between messages."""

    pair: tuple[str, str]
    exchanges: tuple[Exchange, ...] = ()

    def turns(self, system: str, message: str) -> tuple[Turn, ...]:
        """Return the conversation's turns followed by a new message; a blank system prompt is omitted."""
        opening = (Turn("system", system),) if system.strip() else ()
        return (*opening, *self._past_turns(), Turn("user", message))

    def with_answer(self, job: Job) -> Conversation:
        """Return the conversation extended by a run's answer; unchanged if the run belongs to another conversation."""
        asked = tuple(turn for turn in job.info.turns if turn.role != "system")
        if not asked or asked[:-1] != self._past_turns() or job.info.models.names != self.pair:
            return self
        answer = job.result["text"].rstrip("\ufffd")  # a run may end in the middle of a character
        return replace(self, exchanges=(*self.exchanges, Exchange(asked[-1].text, answer, _cut_reason(job))))

    def _past_turns(self) -> tuple[Turn, ...]:
        return tuple(
            turn for past in self.exchanges for turn in (Turn("user", past.asked), Turn("assistant", past.answer))
        )


def _cut_reason(job: Job) -> str:
    ending = job.result["steps"][-1]["finished"] or job.state
    return ending if ending in CUT_REASONS else ""


def current_conversation() -> Conversation:
    """Return this session's conversation with the current pair; empty if there is none yet."""
    stored = state().conversation
    pair = session.pair_spec().names
    return stored if stored is not None and stored.pair == pair else Conversation(pair)


def drop_if_pair_changed() -> bool:
    """Drop the conversation if it was with a different pair; return whether it was dropped."""
    stored = state().conversation
    if stored is None or stored.pair == session.pair_spec().names:
        return False
    start_conversation()
    return True


def start_conversation() -> None:
    """Start a new conversation."""
    job = session_jobs.find_job("decode")
    state().conversation = None
    state().conversation_after = None if job is None else job.id


def add_answer(job: Job) -> None:
    """Add a finished run's answer to the conversation to which it belongs."""
    if job.info.turns:
        conversation = state().conversation or Conversation(job.info.models.names)
        state().conversation = conversation.with_answer(job)


def pop_unanswered_message() -> str | None:
    """Return the message of a run that ended before its first step, only once, so that the user can edit it."""
    job = session_jobs.find_job("decode")
    if job is None or job.active or job.step_count or not job.info.turns or job.id == state().returned_job:
        return None
    state().returned_job = job.id
    return job.info.turns[-1].text


def last_conversation_run() -> dict[str, Any] | None:
    """Return this conversation's last run; None while a run is active or if there is none."""
    job = session_jobs.find_job("decode")
    if job is None or job.active or not job.info.turns or job.id == state().conversation_after:
        return None
    return job.result
