"""A prompt's token ids, as the user's turn of a conversation where the model was tuned for that."""

from __future__ import annotations

from typing import Any

from ..files.faults import panics_as_errors
from ..files.prompt_files import check_text
from ..files.safe_files import one_line


def encode_prompt(tokenizer: Any, text: str, *, chat: bool | None = None) -> list[int]:
    """Return a prompt's token ids, as the user's turn of a conversation where the model was tuned for that.

    Args:
        tokenizer: of transformers.
        chat: True puts the text into the tokenizer's chat template, False takes it as it is, None does what the
            tokenizer has a template for.

    Raises:
        ValueError: for text that has no UTF-8 form, when a template is asked for and there is none, or the one there
            is cannot be used; when the tokenizer breaks down over the text.
    """
    check_text(text)
    with panics_as_errors(f"prompt {text[:40]!r}", "text that the model's tokenizer can take"):
        return _encoded(tokenizer, text, chat)


def _encoded(tokenizer: Any, text: str, chat: bool | None) -> list[int]:
    template = getattr(tokenizer, "chat_template", None)
    if chat is False or (chat is None and template is None):
        return list(tokenizer.encode(text))
    if template is None:
        raise ValueError("chat: found a tokenizer without a chat template, expected that of an instruct model")
    turn = [{"role": "user", "content": text}]
    try:
        return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False))
    except Exception as error:  # a template is a program of the model's author: anything may come out of it
        raise ValueError(
            f"chat: found a chat template that fails ({one_line(str(error))}), expected a usable one"
        ) from error
