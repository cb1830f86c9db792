"""How texts become prompts: as they are or through the chat template, with which arguments, and how they then end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any, Protocol

from ..files.prompt_files import check_text
from ..files.prompt_rows import Prompt, shown
from .chat import (
    PromptRefused,
    Turn,
    chat_text,
    check_all_written,
    check_arguments,
    encode_chat,
    has_template,
    tokenizing,
)

if TYPE_CHECKING:
    from .protocol import Tokenizer

RAW, CHAT = "raw", "chat"
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))  # around what a model thinks before it answers
SWITCHES = ("enable_thinking", "thinking")  # arguments by which templates turn that on and off
PROBE = (Turn("user", "Hello"),)
MAX_ARGUMENTS = 4_000  # characters


class Reader(Protocol):
    """What reads a prompt: a pair, or what is known of one before it is loaded; V = its vocabulary."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Prompting:
    """How texts become prompts.

    Args:
        chat: True puts a text into the tokenizer's chat template, as the user's turn; False takes it as it is; None
            uses a template where the tokenizer has one.
        arguments: name -> value, for the template.
    """

    chat: bool | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)

    def by_template(self, tokenizer: Tokenizer) -> bool:
        """Whether texts go through the tokenizer's chat template."""
        used = has_template(tokenizer) if self.chat is None else self.chat
        if self.arguments and not used:
            raise ValueError(
                f"template argument {next(iter(self.arguments))}: found it for prompts that go through no chat "
                "template, expected a chat model's"
            )
        return used

    def record(self, tokenizer: Tokenizer, turns: Sequence[Turn] = PROBE) -> dict[str, Any]:
        """Return `prompt_ending` and `template_arguments`, for records.

        The ending is "raw", "chat", or "chat, thinking on", "… off" or "… closed by default".
        """
        ending = _ending(tokenizer, turns, self.arguments) if self.by_template(tokenizer) else RAW
        return {"prompt_ending": ending, "template_arguments": dict(self.arguments)}


def parsed_arguments(given: Iterable[str]) -> dict[str, Any]:
    """Read arguments of a template, each "name=value"; a value is JSON, or else a text."""
    arguments: dict[str, Any] = {}
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if not equals or name in arguments or len(one) > MAX_ARGUMENTS:
            raise ValueError(
                f"template argument {one[:40]!r}: found {'it twice' if name in arguments else 'no short name=value'}, "
                "expected such as enable_thinking=false"
            )
        lowered = value.lower()
        try:  # "False" would be true, as every text is
            arguments[name] = json.loads(lowered if lowered in ("true", "false", "null") else value)
        except (ValueError, RecursionError):
            arguments[name] = value
    check_arguments(arguments)
    return arguments


def encode_prompt(reader: Reader, prompt: Prompt, prompting: Prompting | None = None) -> list[int]:
    """Return a prompt's token ids, as a conversation, or a text as its user's turn, where the model is a chat model.

    Raises:
        PromptRefused: the chat template refuses it, or there is none for its turns.
    """
    check_text(prompt)
    prompting, tokenizer = prompting or Prompting(), reader.tokenizer
    if prompting.by_template(tokenizer):
        turns = list(starmap(Turn, (("user", prompt),) if isinstance(prompt, str) else prompt.turns))
        try:
            ids = encode_chat(tokenizer, turns, prompting.arguments)
            check_all_written(tokenizer, turns, prompting.arguments)
        except PromptRefused as error:
            raise PromptRefused(f"prompt {shown(prompt)[:40]!r}: {error}") from error
    elif isinstance(prompt, str):
        with tokenizing(prompt):
            ids = list(tokenizer.encode(prompt))
    else:
        roles = ", ".join(role for role, _ in prompt.turns)
        raise PromptRefused(
            f"prompt {shown(prompt)[:40]!r}: found turns of {roles} for prompts that go through no chat template, "
            "expected a chat model's, or one text"
        )
    return within_rows(reader, ids, shown(prompt))


def within_rows(reader: Reader, ids: list[int], text: str) -> list[int]:
    """Return the ids of a text, refusing a token that the model has no row of weights for."""
    outside = next((token for token in ids if token >= reader.vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"prompt {text[:40]!r}: found {reader.tokenizer.decode([outside])!r}, token {outside}, expected ids below "
            f"{reader.vocab_size}: the model has as many rows, fewer than its tokenizer has tokens"
        )
    return ids


def _ending(tokenizer: Tokenizer, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> str:
    text = chat_text(tokenizer, turns, arguments)
    after = text.rpartition(turns[-1].text.strip() or "\0")[2]
    template = f"{tokenizer.get_chat_template()}"
    switches = [name for name in SWITCHES if re.search(rf"\b{name}\b", template)]
    opened, closed = (max(map(after.rfind, marks)) for marks in zip(*THINKING, strict=True))
    if closed > opened:
        return f"{CHAT}, thinking {'off' if set(switches) & set(arguments) else 'closed by default'}"
    if opened >= 0:
        return f"{CHAT}, thinking on"
    for name in switches:
        with suppress(ValueError):  # a template may take one of the two only
            on, off = (chat_text(tokenizer, turns, {**arguments, name: value}) for value in (True, False))
            if on != off:
                return f"{CHAT}, thinking {'on' if text == on else 'off'}"
    return CHAT
