"""Which part of a row is its prompt: the usual names of columns; of a chat the turns before the first answer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .safe_files import read_json

CHATS = ("turns", "messages", "conversations", "conversation")
USUAL_COLUMNS = ("prompt", *CHATS, "instruction", "text")
SECOND_PARTS = {"instruction": ("input", "context"), "question": ("context",)}  # of the same prompt
SYSTEMS = ("system", "system_prompt")  # columns of what is said before the prompt
ADDED = ("role", "input", "context", *SYSTEMS)  # columns that add to the prompt in another one
ANSWERS = ("response", "completion", "output", "answer")
ASSISTANTS = ("assistant", "gpt", "chatgpt", "model", "bot")
ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user", "prompter": "user"}
ROLES |= dict.fromkeys(ASSISTANTS, "assistant")
MAX_COLUMNS = 1000  # for a person to choose from
_LABEL = re.compile(
    r"(?:.*[_ -])?(?:id|uuid|hash|url|category|source|topic|model|split|subset|lang|language|label)", re.IGNORECASE
)


class Chat(NamedTuple):
    """A prompt of more than a user's turn: (role, text) of each turn; a role is system, user or assistant."""

    turns: tuple[tuple[str, str], ...]


Prompt = str | Chat
Rows = Iterator[tuple[str, dict[str, Any], str]]  # location, cells by column, and the column of the prompt


def shown(prompt: Prompt) -> str:
    """Return a prompt as messages and records show it: not what a model reads."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{role}: {text}" for role, text in prompt.turns)


class Columns(NamedTuple):
    """The columns of a table.

    Attributes:
        names: of all columns.
        texts: those that hold text, or a chat under a usual name.
        nested: those that hold lists of something else, or objects.
    """

    names: Sequence[str]
    texts: Sequence[str]
    nested: Sequence[str]

    @property
    def usual(self) -> str | None:
        """The column of prompts by its name, or the only one of text; None where that is a guess."""
        usual = usual_column(self.names)
        if usual is None and len(self.texts) == 1 and not self.nested and not _LABEL.fullmatch(self.texts[0].strip()):
            return self.texts[0]
        return usual

    def choose(self, column: str | None) -> str:
        """Return the column that was asked for, or else the usual one."""
        if column is not None and column not in self.names:
            raise ValueError(f"found columns {listed(self.names)}, expected one named {column!r}")
        chosen = self.usual if column is None else column
        if chosen is None:
            within = f" with a list or an object in {listed(self.nested)}" if self.nested else ""
            raise ValueError(
                f"found columns {listed(self.names)}{within}, expected one named {', '.join(USUAL_COLUMNS)} "
                "(text only without an answer in another column), or a choice of column (--column)"
            )
        return chosen


class Taken(NamedTuple):
    """Prompts that were read.

    Attributes:
        rows: how many rows were looked at.
        left_out: how many of them have no prompt.
        fault: where the first of these is, and what is wrong with it.
    """

    prompts: list[Prompt]
    rows: int = 0
    left_out: int = 0
    fault: str = ""


def take_prompts(rows: Rows, count: int | None) -> Taken:
    """Return the first `count` prompts of rows, each with its location and its column of prompts.

    A row whose prompt is empty or cannot be read is left out, unless there is no other.
    """
    prompts: list[Prompt] = []
    seen, fault = 0, ""
    for where, row, column in rows:
        seen += 1
        try:
            prompt = prompt_of(row, column)
            if not shown(prompt).strip():
                raise ValueError("found no prompt, expected text")
            prompts.append(prompt)
        except ValueError as error:
            fault = fault or f"{where} ({listed([column])}): {error}"
        if len(prompts) == count:
            break
    if fault and not prompts:
        raise ValueError(fault)
    return Taken(prompts, seen, seen - len(prompts), fault)


def check_columns(columns: Iterable[str]) -> None:
    """Refuse more columns than a person can choose from, and two of the same name."""
    names = [name.strip() for name in columns]
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"found {len(names):,} columns, expected at most {MAX_COLUMNS:,}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"found the column {twice[:40]!r} twice, expected it once")


def listed(columns: Iterable[str]) -> str:
    """Return names of columns as a message shows them, cut to 120 characters."""
    text = ", ".join(columns) or "none"
    return text if len(text) <= 120 else text[:119] + "…"


def usual_column(columns: Iterable[str]) -> str | None:
    """Return the column whose name says that it holds prompts; None where there is none.

    A column called text may be prompt and answer in one, so it is not taken where there is an answer.
    """
    names = {name.strip().lower(): name for name in reversed(list(columns))}
    if not names.keys().isdisjoint(ANSWERS):
        names.pop("text", None)
    return next((names[usual] for usual in USUAL_COLUMNS if usual in names), None)


def prompt_of(row: Mapping[str, Any], column: str) -> Prompt:
    """Return the prompt in a column of a row: a text, or the turns of a chat before its first answer.

    Other columns add to it: a second part, a system prompt, and whose text it is.
    """
    name, value = column.strip().lower(), row[column]
    others = {key.strip().lower(): cell for key, cell in row.items() if key != column}
    role = str(others.get("role")).lower()
    if ROLES.get(role, "user") != "user":
        raise ValueError(f"found a text of the role {role}, expected a user's")
    if name in CHATS and isinstance(value, str) and value.lstrip().startswith("["):  # in a cell of a table
        value = read_json(value.encode())
    if isinstance(value, list):
        prompt = _before_the_answer(value)
    else:
        prompt = text_of(value, column[:40])
        seconds = [others[key] for key in SECOND_PARTS.get(name, ()) if _is_text(others.get(key))]
        prompt = "\n".join([prompt, *seconds]) if prompt else ""
    turns = (("user", prompt),) if isinstance(prompt, str) else prompt.turns
    systems = [] if not prompt or name in SYSTEMS or turns[0][0] == "system" else system_turns(others)
    return Chat((*systems, *turns)) if systems else prompt


def system_turns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what other columns of a row say before its prompt."""
    cells = [cell for key, cell in row.items() if key.strip().lower() in SYSTEMS]
    return [("system", cell) for cell in cells if _is_text(cell)]


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and bool(cell.strip())


def _before_the_answer(turns: list[Any]) -> Prompt:
    before: list[tuple[str, str]] = []
    for turn in turns:
        role, text = turn_of(turn)
        if role not in ROLES:
            raise ValueError(f"found the role {role!r} before the first answer, expected system, user or assistant")
        asked = any(earlier == "user" for earlier, _ in before)
        if ROLES[role] == "assistant" and asked:
            break
        before.append((ROLES[role], text))
        if isinstance(turn, str):  # the next question follows the answer to this one
            break
    if not any(role == "user" and text.strip() for role, text in before):
        return ""
    return before[0][1] if len(before) == 1 else Chat(tuple(before))


def is_chat(value: object) -> bool:
    """Whether a list is turns of one chat, rather than rows."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ("role" in first or "from" in first) and "text" not in first


def turn_of(turn: Any) -> tuple[str, str]:
    if isinstance(turn, str):
        return "user", turn
    if not isinstance(turn, dict):
        raise ValueError(f"found a turn {str(turn)[:40]!r}, expected an object with role and content")
    role = str(turn.get("role", turn.get("from")))[:40].lower()
    return role, text_of(turn.get("content", turn.get("value")), "a turn's content")


def text_of(value: Any, name: str) -> str:
    """Return a text, or the texts among the parts of a message; nothing for a call of a tool, which has none."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "\n".join(str(part["text"]) for part in value if isinstance(part.get("text"), str))
    if not isinstance(value, str):
        raise ValueError(f"found {name} {str(value)[:40]!r}, expected text")
    return value
