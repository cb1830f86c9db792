"""Find a row's prompt by the usual column names; the prompt of a chat is the turns before its first answer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .safe_files import read_json

CHAT_COLUMNS = ("turns", "messages", "conversations", "conversation")
PROMPT_COLUMNS = ("prompt", *CHAT_COLUMNS, "instruction", "text")
SECOND_PARTS = {
    "instruction": ("input", "context"),
    "question": ("context",),
}  # prompt column -> columns appended to its text
SYSTEM_COLUMNS = ("system", "system_prompt")
CONTEXT_COLUMNS = ("role", "input", "context", *SYSTEM_COLUMNS)  # columns that can supplement the prompt column
ANSWER_COLUMNS = ("response", "completion", "output", "answer")
ASSISTANT_ROLES = ("assistant", "gpt", "chatgpt", "model", "bot")
ROLE_ALIASES = {"system": "system", "developer": "system", "user": "user", "human": "user", "prompter": "user"}
ROLE_ALIASES |= dict.fromkeys(ASSISTANT_ROLES, "assistant")
MAX_COLUMNS = 1000  # maximum number of columns per table; the app offers all of them for selection
_LABEL = re.compile(
    r"(?:.*[_ -])?(?:id|uuid|hash|url|category|source|topic|model|split|subset|lang|language|label)", re.IGNORECASE
)


class Chat(NamedTuple):
    """A prompt with several turns, each a pair (role, text); roles are system, user and assistant."""

    turns: tuple[tuple[str, str], ...]


Prompt = str | Chat
PromptRows = Iterator[tuple[str, dict[str, Any], str]]  # (location, cells by column name, name of the prompt column)


def display_prompt(prompt: Prompt) -> str:
    """Return a prompt as shown in messages and records; models read a different text."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{role}: {text}" for role, text in prompt.turns)


class Columns(NamedTuple):
    """The names of a table's columns.

    Attributes:
        names: all columns.
        texts: columns that contain text, or chats under one of the usual names.
        nested: columns that contain other lists or objects.
    """

    names: Sequence[str]
    texts: Sequence[str]
    nested: Sequence[str]

    @property
    def usual(self) -> str | None:
        """The column with a usual prompt name, or else the only text column; None if that would be a guess."""
        usual = find_prompt_column(self.names)
        if usual is None and len(self.texts) == 1 and not self.nested and not _LABEL.fullmatch(self.texts[0].strip()):
            return self.texts[0]
        return usual

    def choose(self, column: str | None) -> str:
        """Return the requested column, or the usual one if `column` is None."""
        if column is not None and column not in self.names:
            raise ValueError(f"found columns {join_names(self.names)}, expected one named {column!r}")
        chosen = self.usual if column is None else column
        if chosen is None:
            within = f" (lists or objects: {join_names(self.nested)})" if self.nested else ""
            raise ValueError(
                f"found columns {join_names(self.names)}{within}, expected one named {', '.join(PROMPT_COLUMNS)} "
                "(text only if there is no answer column), or a column selected with --column"
            )
        return chosen


class LoadedPrompts(NamedTuple):
    """Prompts read from a file.

    Attributes:
        rows: number of rows read.
        left_out: number of rows without a usable prompt.
        fault: location and error of the first row left out; empty if there is none.
    """

    prompts: list[Prompt]
    rows: int = 0
    left_out: int = 0
    fault: str = ""


def collect_prompts(rows: PromptRows, count: int | None) -> LoadedPrompts:
    """Return the first `count` prompts, skipping empty and invalid ones; raise ValueError if all were skipped."""
    prompts: list[Prompt] = []
    seen = 0
    fault = ""
    for where, row, column in rows:
        seen += 1
        try:
            prompt = row_prompt(row, column)
            if not display_prompt(prompt).strip():
                raise ValueError("found an empty prompt, expected text")
            prompts.append(prompt)
        except ValueError as error:
            fault = fault or f"{where} ({join_names([column])}): {error}"
        if len(prompts) == count:
            break
    if fault and not prompts:
        raise ValueError(fault)
    return LoadedPrompts(prompts, seen, seen - len(prompts), fault)


def check_columns(columns: Iterable[str]) -> None:
    """Refuse too many columns and duplicate names."""
    names = [name.strip() for name in columns]
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"found {len(names):,} columns, expected at most {MAX_COLUMNS:,}")
    duplicate = next((name for name in names if name and names.count(name) > 1), None)
    if duplicate is not None:
        raise ValueError(f"found the column {duplicate[:40]!r} twice, expected it once")


def join_names(columns: Iterable[str]) -> str:
    """Return a comma-separated list of column names for a message, truncated to 120 characters."""
    text = ", ".join(columns) or "none"
    return text if len(text) <= 120 else text[:119] + "…"


def find_prompt_column(columns: Iterable[str]) -> str | None:
    """Return the first column with a usual prompt name, or None.

    If there is an answer column, a column named "text" is ignored, because it may contain both prompt and answer.
    """
    names = {name.strip().lower(): name for name in reversed(list(columns))}
    if not names.keys().isdisjoint(ANSWER_COLUMNS):
        names.pop("text", None)
    return next((names[usual] for usual in PROMPT_COLUMNS if usual in names), None)


def row_prompt(row: Mapping[str, Any], column: str) -> Prompt:
    """Return a row's prompt: the text in `column` or, if it contains a chat, the turns before the first answer.

    Other columns of the row may contribute a second part, a system prompt, and the role of the text's author.
    """
    name, value = column.strip().lower(), row[column]
    others = {key.strip().lower(): cell for key, cell in row.items() if key != column}
    role = str(others.get("role")).lower()
    if ROLE_ALIASES.get(role, "user") != "user":
        raise ValueError(f"found text with the role {role}, expected the role user")
    if name in CHAT_COLUMNS and isinstance(value, str) and value.lstrip().startswith("["):  # JSON in a table cell
        value = read_json(value.encode())
    if isinstance(value, list):
        prompt = _turns_before_answer(value)
    else:
        prompt = message_text(value, column[:40])
        seconds = [others[key] for key in SECOND_PARTS.get(name, ()) if _is_text(others.get(key))]
        prompt = "\n".join([prompt, *seconds]) if prompt else ""
    turns = (("user", prompt),) if isinstance(prompt, str) else prompt.turns
    systems = [] if not prompt or name in SYSTEM_COLUMNS or turns[0][0] == "system" else system_turns(others)
    return Chat((*systems, *turns)) if systems else prompt


def system_turns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row's system prompts as turns."""
    cells = [cell for key, cell in row.items() if key.strip().lower() in SYSTEM_COLUMNS]
    return [("system", cell) for cell in cells if _is_text(cell)]


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and bool(cell.strip())


def _turns_before_answer(turns: list[Any]) -> Prompt:
    before: list[tuple[str, str]] = []
    for turn in turns:
        alias, text = read_turn(turn)
        if alias not in ROLE_ALIASES:
            raise ValueError(f"found the role {alias!r} before the first answer, expected system, user or assistant")
        role = ROLE_ALIASES[alias]
        if role == "assistant" and any(earlier == "user" for earlier, _ in before):
            break
        before.append((role, text))
        if isinstance(turn, str):  # A list of questions: the answer to the first one would come next.
            break
    if not any(role == "user" and text.strip() for role, text in before):
        return ""
    return before[0][1] if len(before) == 1 else Chat(tuple(before))


def is_chat(value: object) -> bool:
    """Return whether a value is a list of the turns of one chat, rather than of rows."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ("role" in first or "from" in first) and "text" not in first


def read_turn(turn: Any) -> tuple[str, str]:
    """Return a turn's role, in lower case, and its text."""
    if isinstance(turn, str):
        return "user", turn
    if not isinstance(turn, dict):
        raise ValueError(f"found a turn {str(turn)[:40]!r}, expected an object with role and content")
    role = str(turn.get("role", turn.get("from")))[:40].lower()
    return role, message_text(turn.get("content", turn.get("value")), "a turn's content")


def message_text(value: Any, name: str) -> str:
    """Return a message's text, joining its text parts; "" for a tool call, which contains no text."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "\n".join(str(part["text"]) for part in value if isinstance(part.get("text"), str))
    if not isinstance(value, str):
        raise ValueError(f"found {name} {str(value)[:40]!r}, expected text")
    return value
