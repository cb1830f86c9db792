"""Prompts for chat models: turns, the text that a chat template makes of them, and token ids."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.faults import panics_as_errors
from ..files.prompt_files import check_text
from ..files.safe_files import one_line, read_bytes, read_json

ROLES = ("system", "user", "assistant")
MAX_TEMPLATE_CHARS = 250_000  # ten times the longest that are published
MAX_CHAT_CHARS = 4_000_000  # beyond any context: only a faulty template writes more
RESERVED = (  # names that transformers gives templates itself, or its rendering takes
    "messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "return_assistant_tokens_mask", "raise_exception", "strftime_now",
)  # fmt: skip
SHORTEST_MARK = 3  # characters; shorter ones, such as a dash, are in many texts


class PromptRefused(ValueError):
    """One conversation is refused, by its chat template or for want of one; others may be taken."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side, one of `ROLES`, said in a conversation; may be empty."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role: found {self.role!r}, expected one of {', '.join(ROLES)}")
        check_text(self.text)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse an argument by a name that a template cannot be given."""
    for name in arguments:
        reserved = name in RESERVED or name.endswith(("_token", "_tokens"))
        if reserved or not re.fullmatch(r"[A-Za-z_]\w{0,79}", name, re.ASCII):
            found = "a name that the program itself gives" if reserved else "no name"
            raise ValueError(f"template argument {name[:40]!r}: found {found}, expected such as enable_thinking")


def encode_chat(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> list[int]:
    """Return the token ids of a conversation up to where the assistant's next turn begins."""
    return encode_templated(tokenizer, chat_text(tokenizer, turns, arguments))


def encode_templated(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of the output of `chat_text`, which has all special tokens already."""
    with tokenizing(text):
        return list(tokenizer.encode(text, add_special_tokens=False))


def chat_text(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> str:
    """Return the text that the tokenizer's chat template makes of a conversation, up to the assistant's next turn.

    A template is a program of the model's author. It runs in the sandbox of transformers, which denies it files and
    Python but limits neither its time nor its memory.

    Args:
        arguments: name -> JSON value, given to the template beside the conversation.
    """
    if not has_template(tokenizer):
        raise ValueError("chat: found a tokenizer without a chat template, expected that of an instruct model")
    if not turns:
        raise ValueError("chat: found no turns, expected at least one")
    arguments = arguments or {}
    for name in arguments:
        if not re.search(rf"\b{name}\b", f"{tokenizer.get_chat_template()}"):
            raise ValueError(
                f"template argument {name}: found a chat template that does not read it, expected one that it reads"
            )
    try:
        return _rendered(tokenizer, turns, arguments)
    except PromptRefused as error:
        others = [turn for turn in turns if turn.role != "system"]
        if len(others) in (0, len(turns)) or not _renders(tokenizer, others, arguments):
            raise
        raise PromptRefused(
            f"chat: found a chat template that refuses a system turn ({one_line(error.__cause__ or error)}), "
            "expected a conversation without a system prompt"
        ) from error


def chat_remarks(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> list[str]:
    """Return a warning for each part of a conversation that the model reads as a mark; usually none.

    A template puts each turn between marks, and the tokenizer treats a mark in a text the same: "<|im_end|>" written by
    a user or a model ends the turn. Marks are the tokenizer's special tokens, its other added tokens that the template
    writes, and the lines that the template writes right before and after turns, such as "### Response:".
    """
    markers, frame = _frame(tokenizer, turns, arguments)
    added = (token for token in tokenizer.added_tokens_decoder.values() if token.content.strip())
    marks = {token.content for token in added if token.special or token.content in frame}
    for between in re.split("|".join(map(re.escape, markers)), frame):
        lines = [line.strip() for line in between.splitlines() if line.strip()]
        marks.update(line for line in (*lines[:1], *lines[-1:]) if len(line) >= SHORTEST_MARK)
    remarks = []
    for number, (turn, marker) in enumerate(zip(turns, markers, strict=True), start=1):
        if marker not in frame:
            remarks.append(f"Turn {number} ({turn.role}) is left out by the chat template: the model does not read it.")
        marks_in = [mark for mark in sorted(marks) if mark in turn.text]
        if marks_in:
            remarks.append(
                f"Turn {number} ({turn.role}) holds {', '.join(marks_in)}, which the model reads as a mark of the chat "
                "template: as the end of this turn, or as a turn that nobody took."
            )
    return remarks


def check_all_written(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> None:
    """Refuse a conversation of which the chat template leaves out a turn without an error."""
    markers, frame = _frame(tokenizer, turns, arguments)
    for turn, marker in zip(turns, markers, strict=True):
        if turn.text.strip() and marker not in frame:
            raise PromptRefused(
                f"chat: found a chat template that leaves out the text of the {turn.role}, expected one that writes it"
            )


def _frame(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> tuple[list[str], str]:
    """Return a marker for each turn, and what the template writes of a conversation that says only these."""
    markers = [f"(turn {number})" for number in range(len(turns))]
    framed = [Turn(turn.role, marker) for turn, marker in zip(turns, markers, strict=True)]
    return markers, chat_text(tokenizer, framed, arguments)


def has_chat_template(folder: str | Path) -> bool:
    """Return whether a model's folder has a chat template, without loading its tokenizer."""
    if (Path(folder) / "chat_template.jinja").is_file():
        return True
    try:
        settings = read_json(read_bytes(Path(folder) / "tokenizer_config.json"))
    except ValueError:  # missing or damaged: loading the model reports it
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def has_template(tokenizer: Any) -> bool:
    return getattr(tokenizer, "chat_template", None) is not None


def tokenizing(text: str) -> Any:
    """Turn what a tokenizer raises on a text into one line that names the text."""
    return panics_as_errors(f"prompt {text[:40]!r}", "text that the model's tokenizer can take")


def _rendered(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    try:
        template = tokenizer.get_chat_template()
        if len(template) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"{len(template):,} characters, more than {MAX_TEMPLATE_CHARS:,}")
        rendered: Any = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True, **arguments,
            **tokenizer.special_tokens_map,
        )  # fmt: skip
        text = rendered[0][0]
    except Exception as error:  # other people's programs may raise anything
        raise PromptRefused(
            f"chat: found a chat template that fails ({one_line(error)}), expected a usable one"
        ) from error
    if len(text) > MAX_CHAT_CHARS:
        raise ValueError(
            f"chat: found a chat template that makes {len(text):,} characters of the conversation, expected at most "
            f"{MAX_CHAT_CHARS:,}"
        )
    if not text.strip():
        raise PromptRefused("chat: found a chat template that makes no text of the conversation, expected a usable one")
    check_text(text)
    return text


def _renders(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> bool:
    try:
        _rendered(tokenizer, turns, arguments)
    except ValueError:
        return False
    return True
