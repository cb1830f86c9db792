"""Request completions from a server, with their tokens and log-probabilities."""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from sequoia_core.files.safe_files import read_json

from .local_server import NO_TRUNCATION, ask

MAX_LOGPROB = 1e-3  # tolerance: rounding may push a probability above 1
REQUEST_SEC = 600
Token = int | str


class Answer(NamedTuple):
    """An answer's tokens and, if known, the log-probabilities of the most likely tokens at each position."""

    tokens: tuple[Token, ...]
    tops: tuple[Mapping[Token, float], ...]


def ask_side(address: str, prompt: str, length: int, sampling: Mapping[str, Any], choices: int) -> list[Answer]:
    """Request `choices` answers to one prompt from a server, which may return fewer."""
    body = {"prompt": prompt, "max_tokens": length, "n": choices, "logprobs": 5, **sampling, **NO_TRUNCATION}
    body |= {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    content = ask(address, "/v1/completions", json.dumps(body).encode(), seconds=REQUEST_SEC)
    try:
        answers = [_parse_answer(choice, length) for choice in read_json(content)["choices"][:choices]]
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from error
    except (LookupError, TypeError, AttributeError):
        answers = []
    if not answers:
        found = " ".join(content[:120].decode(errors="replace").split())
        raise ValueError(f"{address}: found {found!r}, expected choices with token_ids or token logprobs")
    return answers


def _parse_answer(choice: Mapping[str, Any], length: int) -> Answer:
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:  # llama.cpp
        rows = [[each, *(each.get("top_logprobs") or ())] for each in logprobs["content"]]
        pairs = [[(each["id"] if "id" in each else each["token"], each["logprob"]) for each in row] for row in rows]
        tokens = [row[0][0] for row in pairs]
        # Without ids, two tokens may have the same text; reversing the order keeps the more likely one.
        tops = [dict(row[:0:-1]) for row in pairs]
    else:  # vLLM, SGLang
        tokens = logprobs["tokens"] if "tokens" in logprobs else choice["token_ids"]
        tops = [{**(each or {})} for each in logprobs.get("top_logprobs") or ()]
    if type(tokens) is not list or not tokens:
        raise TypeError("an answer without tokens")
    if len(tokens) > length or len(tops) not in (0, len(tokens)):
        raise ValueError(
            f"found {len(tokens):,} tokens with {len(tops):,} lists of log-probabilities, expected at most {length:,} "
            "tokens, and a list for every token or for none"
        )
    for token in [*tokens, *chain(*tops)]:
        if type(token) is not str and (type(token) is not int or token < 0):
            raise ValueError(f"found {str(token)[:40]} as a token, expected a token id or its text")
    for value in chain(*(each.values() for each in tops)):
        if type(value) not in (int, float) or value > MAX_LOGPROB:
            raise ValueError(f"found {str(value)[:40]!r} as a log-probability, expected a number no greater than 0")
    return Answer(tuple(tokens), tuple({token: float(value) for token, value in each.items()} for each in tops))
