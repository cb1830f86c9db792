"""Render a chat template as transformers does; imported only by the child process in which that happens."""

import json

from transformers.utils.chat_template_utils import render_jinja_template

from ..files.safe_files import one_line


def render(request: bytes) -> tuple[int, str]:
    """Return how long the text of a conversation is, and its beginning.

    The request is a JSON object of the template, its messages, the special tokens, other arguments, and the most
    characters to return.
    """
    asked = json.loads(request)
    try:
        text = render_jinja_template(
            conversations=[asked["messages"]], chat_template=asked["template"], add_generation_prompt=True,
            **asked["arguments"], **asked["tokens"],
        )[0][0]  # fmt: skip
    except MemoryError:
        raise
    except Exception as error:  # other people's programs may raise anything
        raise ValueError(one_line(error)) from error
    return len(text), text[: asked["most"]]
