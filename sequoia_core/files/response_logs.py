"""Recorded prompts and answers, from the files people have: JSON lines or one JSON list, of several usual shapes.

Read are objects with `prompt` (or `instruction` and `input`, or `question`) and `response` (or `completion`, `output`,
`answer`), as text or as token ids (`prompt_ids` and `token_ids`); chats as `messages` with `role` and `content`, or as
`conversations` with `from` and `value`; and requests to OpenAI-compatible servers (`request` and `response`, or
`choices`). Of a chat each answer is a request of its own, with all turns before it as its prompt.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .json_models import naming
from .prompt_files import check_text, json_rows
from .prompt_rows import (
    ANSWERS,
    ASSISTANTS,
    CHATS,
    Chat,
    is_chat,
    listed,
    prompt_of,
    system_turns,
    text_of,
    turn_of,
    usual_column,
)
from .safe_files import MAX_BYTES, read_bytes

EXPECTED = "prompt and response, prompt_ids and token_ids, or messages with role and content"


class Recorded(NamedTuple):
    """One request: prompt and answer, both as text or both as token ids."""

    prompt: str | list[int]
    answer: str | list[int]

    @property
    def is_text(self) -> bool:
        return isinstance(self.answer, str)


def load_responses(path: str | Path) -> list[Recorded]:
    return responses_from_bytes(read_bytes(path), str(path))


def responses_from_bytes(data: bytes, name: str) -> list[Recorded]:
    """Read the requests of a file's content, in its order; answers without a token are left out, with a warning."""
    with naming(name):
        if len(data) > MAX_BYTES:
            raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
        read: list[Recorded] = []
        for where, row in json_rows(data):
            with naming(where):
                read += _of_row(row)
        answered = [request for request in read if request.answer]
        if not answered:
            raise ValueError("found no answers, expected at least one")
    if empty := len(read) - len(answered):
        warnings.warn(f"{name}: found {empty:,} of {len(read):,} answers empty: they are left out", stacklevel=2)
    return answered


def _of_row(row: dict[str, Any]) -> Iterator[Recorded]:
    asked, answered = (part if isinstance(part := row.get(name), dict) else row for name in ("request", "response"))
    if "token_ids" in row:
        yield Recorded(_ids(row, "prompt_ids"), _ids(row, "token_ids"))
    elif isinstance(answered.get("choices"), list):
        answers = [_of_choice(choice) for choice in answered["choices"]]
        yield from (Recorded(_prompt(asked, answers), answer) for answer in answers)
    elif keys := [key for key in ANSWERS if key in row]:
        filled = [key for key in keys if row[key]] or keys
        if any(row[key] != row[filled[0]] for key in filled):
            raise ValueError(f"found different answers in {listed(filled)}, expected one answer")
        answer = _text(row[filled[0]], filled[0])
        yield Recorded(_prompt(row, [answer]), answer)
    elif turns := next((row[name] for name in CHATS if isinstance(row.get(name), list)), None):
        yield from _of_chat(_turns(row, turns))
    else:
        raise ValueError(f"found keys {listed(row)}, expected {EXPECTED}")


def _turns(row: dict[str, Any], chat: list) -> list[tuple[str, str]]:
    turns = [(role, _text(text, "a turn")) for role, text in map(turn_of, chat)]
    return turns if turns[0][0] == "system" else [*system_turns(row), *turns]


def _of_chat(turns: list[tuple[str, str]]) -> Iterator[Recorded]:
    before: list[str] = []
    for role, text in turns:
        if role in ASSISTANTS:
            yield Recorded("\n".join(before), text)
        before.append(text)


def _of_choice(choice: Any) -> str:
    choice = choice if isinstance(choice, dict) else {}
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return _text(text, "the answer of a choice")


def _prompt(row: dict[str, Any], answers: list[str]) -> str:
    """Return the prompt of a request: a text, a chat's turns one below the other, or "" where it has none.

    A chat may end with the answer, which is then no part of its prompt.
    """
    name = next((name for name in (usual_column(row), "question", "text") if name in row), None)
    if name is None:
        return ""
    prompt = row[name]
    if not is_chat(prompt):
        asked = prompt_of(row, name) if name in CHATS or isinstance(prompt, str) else text_of(prompt, name)
        return _text("\n".join(text for _, text in asked.turns) if isinstance(asked, Chat) else asked, name)
    turns = _turns(row, prompt)
    if turns[-1][0] in ASSISTANTS:
        _, text = turns.pop()
        if text.strip() not in map(str.strip, answers):
            raise ValueError(f"found a chat that ends with {text[:40]!r} and another answer, expected one answer")
    return "\n".join(text for _, text in turns)


def _text(value: Any, name: str) -> str:
    text = text_of(value, name)
    check_text(text)
    return text


def _ids(row: dict[str, Any], name: str) -> list[int]:
    ids = row.get(name)
    whole = isinstance(ids, list) and all(type(token) is int and 0 <= token < 2**31 for token in ids)
    if not whole:
        raise ValueError(f"found {name} {str(ids)[:40]!r}, expected a list of token ids")
    assert isinstance(ids, list)
    return ids
