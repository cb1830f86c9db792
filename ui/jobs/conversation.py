"""The conversation that one browser session has with a model; an answer is a run, and joins it when that is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sequoia_core.models.chat import Turn
from ui.jobs import session_jobs
from ui.jobs.jobs import Job
from ui.session import session
from ui.session.state import get, put

CUT = {
    "length": "Cut off at the number of new tokens.",
    "context": "Cut off: the target's context is full. Start a new conversation.",
    "cancelled": "Stopped.",
    "failed": "Cut off: the run failed.",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and its answer, `cut` for a key of `CUT` where the model did not end it itself."""

    asked: str
    answer: str
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far with a pair, without a system prompt, which may change from one message to the next."""

    pair: tuple[str, str]
    exchanges: tuple[Exchange, ...] = ()

    def turns(self, system: str, message: str) -> tuple[Turn, ...]:
        """Return what a model reads to answer a message; a blank system prompt is none."""
        opening = (Turn("system", system),) if system.strip() else ()
        return (*opening, *self._said(), Turn("user", message))

    def joined(self, job: Job) -> Conversation:
        """Return the conversation with what a run answered; unchanged for a run that belongs to another one."""
        asked = tuple(turn for turn in job.info.turns if turn.role != "system")
        if not asked or asked[:-1] != self._said() or job.info.models.names != self.pair:
            return self
        # a run may end inside a character
        answer = Exchange(asked[-1].text, job.result["text"].rstrip("\ufffd"), _cut(job))
        return replace(self, exchanges=(*self.exchanges, answer))

    def _said(self) -> tuple[Turn, ...]:
        return tuple(
            turn for said in self.exchanges for turn in (Turn("user", said.asked), Turn("assistant", said.answer))
        )


def _cut(job: Job) -> str:
    finished = job.result["steps"][-1]["finished"]
    ending = job.state if finished is None else finished
    return ending if ending in CUT else ""


def current() -> Conversation:
    """Return this session's conversation with the pair in use; an empty one where there is none."""
    kept, pair = get("conversation"), session.pair_spec().names
    return kept if kept is not None and kept.pair == pair else Conversation(pair)


def drop_of_another_pair() -> bool:
    """Drop a conversation with another pair -> whether there was one."""
    kept = get("conversation")
    if kept is None or kept.pair == current().pair:
        return False
    begin()
    return True


def begin() -> None:
    """Begin a new conversation."""
    job = session_jobs.job("decode")
    put("conversation", None)
    put("conversation_after", None if job is None else job.id)


def join(job: Job) -> None:
    """Let the answer of a run that is over, and took a step, join the conversation that asked for it."""
    if job.info.turns:
        base = get("conversation") or Conversation(job.info.models.names)
        put("conversation", base.joined(job))


def unanswered() -> str | None:
    """Return, once, the message of a run that ended without a step: it is the writer's again."""
    job = session_jobs.job("decode")
    if job is None or job.active or job.step_count or not job.info.turns or job.id == get("given_back"):
        return None
    put("given_back", job.id)
    return job.info.turns[-1].text


def last_read() -> dict[str, Any] | None:
    """Return the last run of this conversation, its `prompt` as the template wrote it; None while one goes on."""
    job = session_jobs.job("decode")
    if job is None or job.active or not job.info.turns or job.id == get("conversation_after"):
        return None
    return job.result
