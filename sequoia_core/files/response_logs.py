"""Read recorded prompts and answers from JSON lines or a JSON list, in several common layouts.

Supported layouts are objects with `prompt` (or `instruction` and `input`, or `question`) and `response` (or
`completion`, `output`, `answer`); token ids as `prompt_ids` and `token_ids`; chats as `messages` with `role` and
`content`, or as `conversations` with `from` and `value`; and requests to OpenAI-compatible servers (`request` and
`response`, or `choices`). Each answer in a chat counts as a request whose prompt is all earlier turns.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .json_models import prefix_errors
from .prompt_files import check_text, json_rows
from .prompt_rows import (
    ANSWER_COLUMNS,
    ASSISTANT_ROLES,
    CHAT_COLUMNS,
    Chat,
    find_prompt_column,
    is_chat,
    join_names,
    message_text,
    read_turn,
    row_prompt,
    system_turns,
)
from .safe_files import MAX_BYTES, read_bytes

EXPECTED_KEYS = "prompt and response, prompt_ids and token_ids, or messages with role and content"


class RecordedRequest(NamedTuple):
    """A recorded prompt and its answer, either both as text or both as token ids."""

    prompt: str | list[int]
    answer: str | list[int]

    @property
    def is_text(self) -> bool:
        return isinstance(self.answer, str)


def load_responses(path: str | Path) -> list[RecordedRequest]:
    return responses_from_bytes(read_bytes(path), str(path))


def responses_from_bytes(data: bytes, name: str) -> list[RecordedRequest]:
    """Read a file's requests in order; requests with an empty answer are skipped, with a warning."""
    with prefix_errors(name):
        if len(data) > MAX_BYTES:
            raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BYTES:,}")
        read: list[RecordedRequest] = []
        for where, row in json_rows(data):
            with prefix_errors(where):
                read += _row_requests(row)
        answered = [request for request in read if request.answer]
        if not answered:
            raise ValueError("found no answers, expected at least one")
    if empty := len(read) - len(answered):
        warnings.warn(f"{name}: {empty:,} of {len(read):,} answers are empty and were skipped", stacklevel=2)
    return answered


def _row_requests(row: dict[str, Any]) -> Iterator[RecordedRequest]:
    request, response = (part if isinstance(part := row.get(name), dict) else row for name in ("request", "response"))
    if "token_ids" in row:
        yield RecordedRequest(_token_ids(row, "prompt_ids"), _token_ids(row, "token_ids"))
    elif isinstance(response.get("choices"), list):
        answers = [_choice_text(choice) for choice in response["choices"]]
        yield from (RecordedRequest(_prompt_text(request, answers), answer) for answer in answers)
    elif keys := [key for key in ANSWER_COLUMNS if key in row]:
        filled = [key for key in keys if row[key]] or keys
        if any(row[key] != row[filled[0]] for key in filled):
            raise ValueError(f"found different answers in {join_names(filled)}, expected one answer")
        answer = _text(row[filled[0]], filled[0])
        yield RecordedRequest(_prompt_text(row, [answer]), answer)
    elif turns := next((row[name] for name in CHAT_COLUMNS if isinstance(row.get(name), list)), None):
        yield from _chat_requests(_turns(row, turns))
    else:
        raise ValueError(f"found keys {join_names(row)}, expected {EXPECTED_KEYS}")


def _turns(row: dict[str, Any], chat: list) -> list[tuple[str, str]]:
    turns = [(role, _text(text, "a turn")) for role, text in map(read_turn, chat)]
    return turns if turns[0][0] == "system" else [*system_turns(row), *turns]


def _chat_requests(turns: list[tuple[str, str]]) -> Iterator[RecordedRequest]:
    before: list[str] = []
    for role, text in turns:
        if role in ASSISTANT_ROLES:
            yield RecordedRequest("\n".join(before), text)
        before.append(text)


def _choice_text(choice: Any) -> str:
    choice = choice if isinstance(choice, dict) else {}
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return _text(text, "the answer in a choice")


def _prompt_text(row: dict[str, Any], answers: list[str]) -> str:
    """Return a request's prompt: its text, or its chat turns on separate lines; "" if it has none.

    If the last turn of a chat is the answer, it is not part of the prompt.
    """
    name = next((name for name in (find_prompt_column(row), "question", "text") if name in row), None)
    if name is None:
        return ""
    value = row[name]
    if not is_chat(value):
        from_row = name in CHAT_COLUMNS or isinstance(value, str)
        prompt = row_prompt(row, name) if from_row else message_text(value, name)
        return _text("\n".join(text for _, text in prompt.turns) if isinstance(prompt, Chat) else prompt, name)
    turns = _turns(row, value)
    if turns[-1][0] in ASSISTANT_ROLES:
        _, text = turns.pop()
        if text.strip() not in map(str.strip, answers):
            raise ValueError(f"found a chat that ends with {text[:40]!r} and a different answer, expected one answer")
    return "\n".join(text for _, text in turns)


def _text(value: Any, name: str) -> str:
    text = message_text(value, name)
    check_text(text)
    return text


def _token_ids(row: dict[str, Any], name: str) -> list[int]:
    ids = row.get(name)
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < 2**31 for token in ids):
        raise ValueError(f"found {name} {str(ids)[:40]!r}, expected a list of token ids")
    return ids
