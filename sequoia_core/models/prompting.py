"""Turn texts into prompts, either unchanged or through the chat template and its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any, Protocol

from ..files.prompt_files import check_text
from ..files.prompt_rows import Prompt, display_prompt
from .chat import (
    PromptRefused,
    Turn,
    chat_text,
    check_all_turns_rendered,
    check_arguments,
    encode_chat,
    explain_tokenizer_errors,
    has_template,
)

if TYPE_CHECKING:
    from .protocol import Tokenizer

RAW_ENDING = "raw"
CHAT_ENDING = "chat"
THINKING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
THINKING_SWITCHES = ("enable_thinking", "thinking")  # template arguments that turn thinking on or off
PROBE_TURNS = (Turn("user", "Hello"),)
MAX_ARGUMENT_CHARS = 4_000


class Reader(Protocol):
    """A reader of prompts: a pair, or the facts about one before it is loaded."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Prompting:
    """Settings for turning texts into prompts.

    Args:
        chat: True puts a text into the tokenizer's chat template as the user's turn; False leaves it unchanged; None
            uses the template if the tokenizer has one.
        arguments: name -> value, passed to the template.
    """

    chat: bool | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)

    def uses_template(self, tokenizer: Tokenizer) -> bool:
        """Return whether texts go through the tokenizer's chat template."""
        used = has_template(tokenizer) if self.chat is None else self.chat
        if self.arguments and not used:
            raise ValueError(
                f"template argument {next(iter(self.arguments))}: found with prompts that use no chat template, "
                "expected a chat model's prompts"
            )
        return used

    def record(self, tokenizer: Tokenizer, turns: Sequence[Turn] = PROBE_TURNS) -> dict[str, Any]:
        """Return `prompt_ending` and `template_arguments`, for records.

        The ending is "raw", "chat", or "chat, thinking on", "… off" or "… closed by default".
        """
        ending = _ending(tokenizer, turns, self.arguments) if self.uses_template(tokenizer) else RAW_ENDING
        return {"prompt_ending": ending, "template_arguments": dict(self.arguments)}


def parse_template_arguments(given: Iterable[str]) -> dict[str, Any]:
    """Parse template arguments, each "name=value" with JSON or plain text as the value."""
    arguments: dict[str, Any] = {}
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if not equals or name in arguments or len(one) > MAX_ARGUMENT_CHARS:
            raise ValueError(
                f"template argument {one[:40]!r}: found {'a repeated name' if name in arguments else 'invalid text'}, "
                "expected a short name=value such as enable_thinking=false"
            )
        lowered = value.lower()
        try:  # converted to lower case, since the string "False" would be truthy
            arguments[name] = json.loads(lowered if lowered in ("true", "false", "null") else value)
        except (ValueError, RecursionError):
            arguments[name] = value
    check_arguments(arguments)
    return arguments


def encode_prompt(reader: Reader, prompt: Prompt, prompting: Prompting | None = None) -> list[int]:
    """Return a prompt's token ids; a text becomes the user's turn for a chat model.

    Raises:
        PromptRefused: the chat template refuses the prompt, or is missing for its turns.
    """
    check_text(prompt)
    prompting = prompting or Prompting()
    tokenizer = reader.tokenizer
    if prompting.uses_template(tokenizer):
        turns = list(starmap(Turn, (("user", prompt),) if isinstance(prompt, str) else prompt.turns))
        try:
            ids = encode_chat(tokenizer, turns, prompting.arguments)
            check_all_turns_rendered(tokenizer, turns, prompting.arguments)
        except PromptRefused as error:
            raise PromptRefused(f"prompt {display_prompt(prompt)[:40]!r}: {error}") from error
    elif isinstance(prompt, str):
        with explain_tokenizer_errors(prompt):
            ids = list(tokenizer.encode(prompt))
    else:
        roles = ", ".join(role for role, _ in prompt.turns)
        raise PromptRefused(
            f"prompt {display_prompt(prompt)[:40]!r}: found turns ({roles}) but no chat template, expected a chat "
            "model or a single text"
        )
    return check_token_range(reader, ids, display_prompt(prompt))


def check_token_range(reader: Reader, ids: list[int], text: str) -> list[int]:
    """Return a text's token ids; raise ValueError for a token outside the model's vocabulary."""
    outside = next((token for token in ids if token >= reader.vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"prompt {text[:40]!r}: found {reader.tokenizer.decode([outside])!r}, token {outside}, expected ids below "
            f"{reader.vocab_size}: the model has fewer logits than its tokenizer has tokens"
        )
    return ids


def _ending(tokenizer: Tokenizer, turns: Sequence[Turn], arguments: Mapping[str, Any]) -> str:
    text = chat_text(tokenizer, turns, arguments)
    after = text.rpartition(turns[-1].text.strip() or "\0")[2]
    template = f"{tokenizer.get_chat_template()}"
    switches = [name for name in THINKING_SWITCHES if re.search(rf"\b{name}\b", template)]
    opened, closed = (max(map(after.rfind, marks)) for marks in zip(*THINKING_MARKS, strict=True))
    if closed > opened:
        return f"{CHAT_ENDING}, thinking {'off' if set(switches) & set(arguments) else 'closed by default'}"
    if opened >= 0:
        return f"{CHAT_ENDING}, thinking on"
    for name in switches:
        with suppress(ValueError):  # a template may accept only one of the two
            on, off = (chat_text(tokenizer, turns, {**arguments, name: value}) for value in (True, False))
            if on != off:
                return f"{CHAT_ENDING}, thinking {'on' if text == on else 'off'}"
    return CHAT_ENDING
