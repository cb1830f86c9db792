"""Recorded prompts and answers, from the files people have: JSON lines or one JSON list, of several usual shapes.

Read are objects with `prompt` and `response` (or `completion`, `output`, `answer`), as text or as token ids
(`prompt_ids` and `token_ids`); chats as `messages` with `role` and `content`, or as `conversations` with `from` and
`value`; and what an OpenAI-compatible server was asked and answered (`request` and `response`, or `choices`). Of a
chat each answer is a request of its own, with all turns before it as its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .prompt_columns import listed
from .prompt_files import check_text, jsonl_rows
from .safe_files import read_bytes, read_json

MAX_LOG_BYTES = 64 * 2**20
ANSWERS = ("response", "completion", "output", "answer")
ASSISTANTS = ("assistant", "gpt", "model", "bot")
EXPECTED = "prompt and response, prompt_ids and token_ids, or messages with role and content"


class Recorded(NamedTuple):
    """One request: prompt and answer, both as text or both as token ids."""

    prompt: str | list[int]
    answer: str | list[int]

    @property
    def is_text(self) -> bool:
        return isinstance(self.answer, str)


def load_responses(path: str | Path) -> list[Recorded]:
    """Read the requests of a file, in its order; see `responses_from_bytes`."""
    return responses_from_bytes(read_bytes(path, limit=MAX_LOG_BYTES), str(path))


def responses_from_bytes(data: bytes, name: str) -> list[Recorded]:
    """Read the requests of a file's content, such as an upload, in its order; answers without a token are left out.

    Raises:
        ValueError: in one line, naming the file and the line, what was found and what was expected.
    """
    try:
        if len(data) > MAX_LOG_BYTES:
            raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_LOG_BYTES:,}")
        found = [request for place, row in _rows(data) for request in _requests(place, row) if request.answer]
        if not found:
            raise ValueError("found no answers, expected at least one")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return found


def _rows(data: bytes) -> Iterator[tuple[str, dict]]:
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from ((f"line {number}", row) for number, _, row in jsonl_rows(data))
        return
    rows = read_json(data)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"entry {number}: found {str(row)[:40]!r}, expected an object")
        yield f"entry {number}", row


def _requests(place: str, row: dict[str, Any]) -> Iterator[Recorded]:
    try:
        yield from _of_row(row)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _of_row(row: dict[str, Any]) -> Iterator[Recorded]:
    asked, answered = (part if isinstance(part := row.get(name), dict) else row for name in ("request", "response"))
    if "token_ids" in row:
        yield Recorded(_ids(row, "prompt_ids"), _ids(row, "token_ids"))
    elif isinstance(answered.get("choices"), list):
        before = _prompt(asked)
        for choice in answered["choices"][:1]:
            choice = choice if isinstance(choice, dict) else {}
            message = choice.get("message")
            text = message.get("content") if isinstance(message, dict) else choice.get("text")
            yield Recorded(before, _text(text, "the answer of a choice"))
    elif key := next((key for key in ANSWERS if key in row), None):
        yield Recorded(_prompt(row), _text(row[key], key))
    elif isinstance(turns := row.get("messages", row.get("conversations")), list):
        yield from _of_chat(turns)
    else:
        raise ValueError(f"found keys {listed(row)}, expected {EXPECTED}")


def _of_chat(turns: list) -> Iterator[Recorded]:
    before: list[str] = []
    for role, text in map(_turn, turns):
        if role in ASSISTANTS:
            yield Recorded("\n".join(before), text)
        before.append(text)


def _turn(turn: Any) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise ValueError(f"found a turn {str(turn)[:40]!r}, expected an object with role and content")
    role = turn.get("role", turn.get("from"))
    return str(role)[:40], _text(turn.get("content", turn.get("value")), "a turn's content")


def _prompt(row: dict[str, Any]) -> str:
    """Return the prompt of a request: its text, its turns one below the other, or nothing where it has none."""
    found = row.get("prompt", row.get("messages", row.get("instruction", "")))
    if isinstance(found, list):
        return "\n".join(text for _, text in map(_turn, found))
    return _text(found, "prompt")


def _text(value: Any, name: str) -> str:
    if value is None:  # an answer that is a call of a tool, a turn without text
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):  # parts of a message, text or other
        value = "\n".join(str(part["text"]) for part in value if isinstance(part.get("text"), str))
    if not isinstance(value, str):
        raise ValueError(f"found {name} {str(value)[:40]!r}, expected text")
    check_text(value)
    return value


def _ids(row: dict[str, Any], name: str) -> list[int]:
    ids = row.get(name)
    whole = isinstance(ids, list) and all(type(token) is int and 0 <= token < 2**31 for token in ids)
    if not whole:
        raise ValueError(f"found {name} {str(ids)[:40]!r}, expected a list of token ids")
    assert isinstance(ids, list)
    return ids
