"""Prompts for chat models: turns, the text that a chat template renders from them, and token ids."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.faults import panics_as_errors
from ..files.prompt_files import check_text
from ..files.safe_files import one_line, read_bytes, read_json

ROLES = ("system", "user", "assistant")
MAX_TEMPLATE_CHARS = 250_000  # ten times the length of the longest published templates
MAX_CHAT_CHARS = 4_000_000  # longer than any context
RESERVED = (  # names that transformers passes to templates or uses as rendering parameters
    "messages",
    "conversations",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "return_assistant_tokens_mask",
    "raise_exception",
    "strftime_now",
)
MIN_MARK_CHARS = 3  # shorter delimiters, such as a dash, occur in many texts


class PromptRefused(ValueError):
    """Raised if a chat template refuses a conversation or is missing; other prompts may still be valid."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message in a conversation, by one of the `ROLES`; its text may be empty."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role: found {self.role!r}, expected one of {', '.join(ROLES)}")
        check_text(self.text)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that cannot be passed to a template."""
    for name in arguments:
        reserved = name in RESERVED or name.endswith(("_token", "_tokens"))
        if reserved or not re.fullmatch(r"[A-Za-z_]\w{0,79}", name, re.ASCII):
            found = "a reserved name" if reserved else "an invalid name"
            raise ValueError(f"template argument {name[:40]!r}: found {found}, expected a name such as enable_thinking")


def encode_chat(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> list[int]:
    """Return the token ids of a conversation up to the start of the assistant's next turn."""
    return encode_templated(tokenizer, chat_text(tokenizer, turns, arguments))


def encode_templated(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of `chat_text`'s output, which already contains all special tokens."""
    with explain_tokenizer_errors(text):
        return list(tokenizer.encode(text, add_special_tokens=False))


def chat_text(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> str:
    """Render a conversation with the tokenizer's chat template, up to the start of the assistant's next turn.

    A template is a program written by the model's author. It runs in transformers' sandbox, which denies access to
    files and Python but limits neither time nor memory.

    Args:
        arguments: name -> JSON value, passed to the template with the conversation.
    """
    if not has_template(tokenizer):
        raise ValueError("chat: found a tokenizer without a chat template, expected an instruct model's tokenizer")
    if not turns:
        raise ValueError("chat: found no turns, expected at least one")
    arguments = arguments or {}
    for name in arguments:
        if not re.search(rf"\b{name}\b", f"{tokenizer.get_chat_template()}"):
            raise ValueError(
                f"template argument {name}: found a chat template that does not use it, expected one that does"
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
    """Return a warning for each turn that the template omits or that contains one of its delimiters.

    The tokenizer cannot distinguish the template's delimiters from the same characters within a turn: "<|im_end|>"
    written by a user or a model ends the turn. Delimiters are the tokenizer's special tokens, other added tokens that
    the template uses, and the template's lines directly before and after turns, such as "### Response:".
    """
    markers, frame = _frame(tokenizer, turns, arguments)
    added = (token for token in tokenizer.added_tokens_decoder.values() if token.content.strip())
    marks = {token.content for token in added if token.special or token.content in frame}
    for between in re.split("|".join(map(re.escape, markers)), frame):
        lines = [line.strip() for line in between.splitlines() if line.strip()]
        marks.update(line for line in (*lines[:1], *lines[-1:]) if len(line) >= MIN_MARK_CHARS)
    remarks = []
    for number, (turn, marker) in enumerate(zip(turns, markers, strict=True), start=1):
        if marker not in frame:
            remarks.append(f"Turn {number} ({turn.role}) is omitted by the chat template: the model does not read it.")
        marks_in = [mark for mark in sorted(marks) if mark in turn.text]
        if marks_in:
            remarks.append(
                f"Turn {number} ({turn.role}) contains {', '.join(marks_in)}, which the model reads as a "
                "delimiter of the chat template: it may end this turn or start another one."
            )
    return remarks


def check_all_turns_rendered(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> None:
    """Raise PromptRefused if the chat template silently drops a turn."""
    markers, frame = _frame(tokenizer, turns, arguments)
    for turn, marker in zip(turns, markers, strict=True):
        if turn.text.strip() and marker not in frame:
            raise PromptRefused(
                f"chat: found a chat template that omits the text of the {turn.role}, expected one that includes it"
            )


def _frame(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any] | None = None) -> tuple[list[str], str]:
    """Return a marker for each turn, and the conversation rendered with these markers as its only text."""
    markers = [f"(turn {number})" for number in range(len(turns))]
    framed = [Turn(turn.role, marker) for turn, marker in zip(turns, markers, strict=True)]
    return markers, chat_text(tokenizer, framed, arguments)


def has_chat_template(folder: str | Path) -> bool:
    """Return whether a model's folder has a chat template, without loading its tokenizer."""
    if (Path(folder) / "chat_template.jinja").is_file():
        return True
    try:
        settings = read_json(read_bytes(Path(folder) / "tokenizer_config.json"))
    except ValueError:  # the file is missing or damaged, which loading reports
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def has_template(tokenizer: Any) -> bool:
    return getattr(tokenizer, "chat_template", None) is not None


def explain_tokenizer_errors(text: str) -> Any:
    """Convert a tokenizer's errors to a one-line ValueError that quotes the start of the text."""
    return panics_as_errors(f"prompt {text[:40]!r}", "text that the model's tokenizer can encode")


def _rendered(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    try:
        template = tokenizer.get_chat_template()
        if len(template) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"{len(template):,} characters, more than {MAX_TEMPLATE_CHARS:,}")
        rendered: Any = render_jinja_template(
            conversations=[messages],
            chat_template=template,
            add_generation_prompt=True,
            **arguments,
            **tokenizer.special_tokens_map,
        )
        text = rendered[0][0]
    except Exception as error:  # a template may raise any exception
        raise PromptRefused(
            f"chat: found a chat template that fails ({one_line(error)}), expected one that works"
        ) from error
    if len(text) > MAX_CHAT_CHARS:
        raise ValueError(
            f"chat: found a chat template that renders the conversation as {len(text):,} characters, expected at most "
            f"{MAX_CHAT_CHARS:,}"
        )
    if not text.strip():
        raise PromptRefused(
            "chat: found a chat template that renders the conversation as empty text, expected a prompt"
        )
    check_text(text)
    return text


def _renders(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> bool:
    try:
        _rendered(tokenizer, turns, arguments)
    except ValueError:
        return False
    return True
