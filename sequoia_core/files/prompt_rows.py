"""Which part of a row is its prompt: the usual names of columns; of a chat all that comes before the first answer."""

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

from .safe_files import read_json

CHATS = ("turns", "messages", "conversations", "conversation")
USUAL_COLUMNS = ("text", "prompt", *CHATS, "instruction")
SECOND_PARTS = {"instruction": "input"}  # a part of the same prompt, where a row has it
ASSISTANTS = ("assistant", "gpt", "model", "bot")
MAX_COLUMNS = 1000  # for a person to choose from
_LABEL = re.compile(
    r"(?:.*[_ -])?(?:id|uuid|hash|url|category|source|topic|model|split|subset|lang|language|label)", re.IGNORECASE
)


def check_few(columns: Sized) -> Sized:
    """Refuse more columns than a person can choose from."""
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"found {len(columns):,} columns, expected at most {MAX_COLUMNS:,}")
    return columns


def listed(columns: Iterable[str]) -> str:
    """Return names of columns as a message shows them, cut to 120 characters."""
    text = ", ".join(columns) or "none"
    return text if len(text) <= 120 else text[:119] + "…"


def usual_column(columns: Iterable[str]) -> str | None:
    """Return the column whose name says that it holds prompts; None where there is none."""
    names = {name.strip().lower(): name for name in reversed(list(columns))}
    return next((names[usual] for usual in USUAL_COLUMNS if usual in names), None)


def choose_column(columns: Sequence[str], candidates: Sequence[str], column: str | None) -> str:
    """Return the column of prompts; the only one of the text `candidates` unless it is called like a label."""
    if column is not None:
        if column not in columns:
            raise ValueError(f"found columns {listed(columns)}, expected one named {column!r}")
        return column
    usual = usual_column(columns)
    if usual is not None:
        return usual
    if len(candidates) == 1 and not _LABEL.fullmatch(candidates[0].strip()):
        return candidates[0]
    raise ValueError(
        f"found columns {listed(columns)}, expected one named {', '.join(USUAL_COLUMNS)}, or a choice of column "
        "(--column)"
    )


def prompt_of(row: Mapping[str, Any], column: str) -> str:
    """Return the prompt in a column of a row: a text, or what of a chat comes before its first answer."""
    name, value = column.strip().lower(), row[column]
    if name in CHATS and isinstance(value, str) and value.lstrip().startswith("["):  # in a cell of a table
        value = read_json(value.encode())
    prompt = _before_the_answer(value) if isinstance(value, list) else text_of(value, column[:40])
    beside = next((row[other] for other in row if other.strip().lower() == SECOND_PARTS.get(name)), None)
    return f"{prompt}\n{beside}" if prompt and isinstance(beside, str) and beside.strip() else prompt


def _before_the_answer(turns: list[Any]) -> str:
    before: list[str] = []
    asked = False
    for role, text in map(turn_of, turns):
        if role in ASSISTANTS and asked:
            break
        asked = asked or role not in ASSISTANTS
        before.append(text)
    return "\n".join(before)


def is_chat(value: object) -> bool:
    """Whether a list is turns of one chat, rather than rows."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ("role" in first or "from" in first)


def turn_of(turn: Any) -> tuple[str, str]:
    if isinstance(turn, str):
        return "user", turn
    if not isinstance(turn, dict):
        raise ValueError(f"found a turn {str(turn)[:40]!r}, expected an object with role and content")
    role = turn.get("role", turn.get("from"))
    return str(role)[:40], text_of(turn.get("content", turn.get("value")), "a turn's content")


def text_of(value: Any, name: str) -> str:
    """Return a text, or the texts among the parts of a message; nothing for a call of a tool, which has none."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "\n".join(str(part["text"]) for part in value if isinstance(part.get("text"), str))
    if not isinstance(value, str):
        raise ValueError(f"found {name} {str(value)[:40]!r}, expected text")
    return value
