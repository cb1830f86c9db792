"""Is a server's speculation lossless? The same requests go to it with a draft and without.

At temperature 0 answers are compared token by token, with the gap of the two logits where they part. Above 0 it is the
law of tokens 2 to 4, given the first, which is never drafted and so is the control.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..design.near_ties import gap_words, is_near_tie
from ..studies.prompt_loop import Progress, Report, one_by_one
from .local_server import UNCUT, ask
from .readings import counts_from_bytes
from .same_law import FALSE_ALARM, compare_laws, power, samples_needed

COMPARED_TOKENS = 4  # tokens of each sampled answer
ASKED_TOKENS = COMPARED_TOKENS + 2  # servers draft less where an answer ends
CHOICES = (64, 16, 4, 1)  # answers to one request, tried in turn
REQUEST_SEC = 600
T = TypeVar("T")
Token = int | str


class Side(NamedTuple):
    """A server, with a draft or without, and further fields of its requests."""

    address: str
    fields: Mapping[str, Any] = {}


class Answer(NamedTuple):
    """The tokens of an answer, and at each the log-probabilities of the most likely ones, where known."""

    tokens: tuple[Token, ...]
    tops: tuple[Mapping[Token, float], ...]


Both = Callable[..., list[list[Answer]]]  # turn, length, answers to one request -> of each side


def ask_side(side: Side, prompt: str, length: int, sampling: Mapping[str, Any], choices: int) -> list[Answer]:
    """Return a server's answers to one prompt, `choices` or fewer."""
    body = {"prompt": prompt, "max_tokens": length, "n": choices, "logprobs": 5, **sampling, **UNCUT}
    body |= {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True, **side.fields}
    content = ask(side.address, "/v1/completions", json.dumps(body).encode(), seconds=REQUEST_SEC)
    try:
        answers = [_answer(choice) for choice in json.loads(content)["choices"][:choices]]
        assert answers, "without choices there is no answer"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, AssertionError) as error:
        said = " ".join(content[:120].decode(errors="replace").split())
        raise ValueError(
            f"{side.address}: found {said!r}, expected choices with token_ids or logprobs of tokens"
        ) from error
    return answers


def _answer(choice: Mapping[str, Any]) -> Answer:
    told = choice.get("logprobs") or {}
    if "content" in told:  # llama.cpp
        rows = [[each, *(each.get("top_logprobs") or ())] for each in told["content"]]
        pairs = [[(each["id"] if "id" in each else each["token"], each["logprob"]) for each in row] for row in rows]
        tokens, tops = [row[0][0] for row in pairs], [dict(row[1:]) for row in pairs]
    else:  # vLLM, SGLang
        tokens = told["tokens"] if "tokens" in told else choice["token_ids"]
        tops = [dict(each or {}) for each in told.get("top_logprobs") or ()]
    if type(tokens) is not list or not tokens or not all(type(token) in (int, str) for token in tokens):
        raise ValueError("no tokens")
    return Answer(tuple(tokens), tuple({token: float(value) for token, value in each.items()} for each in tops))


def audit(
    sides: tuple[Side, Side],
    prompts: Sequence[str],
    *,
    sampling: Mapping[str, Any],
    length: int,
    variation: float,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Send requests with a draft and without, in turns, and compare the answers.

    Args:
        sides: with a draft, and without.
        sampling: fields of the requests, `temperature` among them.
        length: tokens of an answer at temperature 0.
        variation: the bias that is to be found above temperature 0.

    Returns:
        JSON-ready: `lossless`, None where that cannot be told; `verdict`, a sentence; what was sent and what it shows.
    """

    def both(turn: int, tokens: int, choices: int = 1) -> list[list[Answer]]:
        return [ask_side(side, prompts[turn % len(prompts)], tokens, sampling, choices) for side in sides]

    audited, plain = sides
    _, drafts = _drafts_while(plain, lambda: ask_side(plain, prompts[0], 2 * ASKED_TOKENS, sampling, 1))
    if drafts or (drafts is None and plain.address == audited.address):
        told = "no counters of drafts" if drafts is None else f"{drafts:,} drafts in a request that should have none"
        raise ValueError(
            f"{plain.address}: found {told} (sent {json.dumps(plain.fields)}), expected none drafted: "
            "start a second server without a draft and name it with --against"
        )
    compare = partial(_laws, variation=variation) if sampling["temperature"] else partial(_texts, length=length)
    record, drafts = _drafts_while(audited, lambda: compare(both, len(prompts), progress=progress))
    if drafts == 0:
        record |= {"lossless": None, "verdict": "The server drafted nothing, so nothing was tested."}
    elif drafts is None:
        record["verdict"] += " Whether it drafted at all, it does not tell."
    return record | {"drafts": drafts, "prompts": len(prompts), "sampling": dict(sampling)}


def _drafts_while(side: Side, act: Callable[[], T]) -> tuple[T, int | None]:
    """Return what a function does, and how often the server drafted meanwhile; None where it does not count that."""
    try:
        before = ask(side.address, "/metrics")
    except ValueError:  # llama.cpp has them with --metrics only
        return act(), None
    result = act()
    try:
        return result, counts_from_bytes(ask(side.address, "/metrics"), side.address, before).drafts
    except ValueError as error:
        return result, 0 if "no drafts" in str(error) else None


def _texts(both: Both, prompts: int, *, length: int, progress: Progress | None) -> dict[str, Any]:
    def parted(turn: int, report: Report) -> dict[str, Any]:
        (answer,), (wanted,) = both(turn, length)
        report(1.0)
        return first_difference(answer, wanted) | {"prompt": turn}

    each = list(one_by_one(prompts, parted, progress=progress))
    parting = [one for one in each if one["tokens"]]
    worst = min(parting, key=lambda one: (False, None, True).index(one["near_tie"]), default=None)
    lossless, same = worst is None or worst["near_tie"], prompts - len(parting)
    said = {True: "Lossless", False: "Not lossless", None: "Cannot be told"}[lossless]
    verdict = f"{said}: {same} of {prompts} answers of {length} tokens are the same with a draft and without."
    if worst is not None:
        verdict += f" In prompt {worst['prompt'] + 1} {worst['words']}."
    return {
        "lossless": lossless, "verdict": verdict, "requests": 2 * prompts, "first_difference": worst,
        "gap": worst and worst["gap"], "differences": prompts - same, "p_value": None, "power": None,
    }  # fmt: skip


def first_difference(found: Answer, wanted: Answer) -> dict[str, Any]:
    """Return where two answers part, the tokens there, and the gap of their logits where both are known."""
    if found.tokens == wanted.tokens:
        return {"tokens": None, "near_tie": True, "gap": None}
    pairs = list(zip(wanted.tokens, found.tokens, strict=False))
    index = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
    tokens: list[Any] = [answer.tokens[index] if index < len(answer.tokens) else None for answer in (wanted, found)]
    gap, how = None, "the server does not tell how near their logits are"
    for told in (answer.tops[index] for answer in (found, wanted) if index < len(answer.tops)):  # the plain one counts
        if set(tokens) <= set(told) and math.isfinite(told[tokens[0]] - told[tokens[1]]):
            gap = told[tokens[0]] - told[tokens[1]]
            how = gap_words(gap, exact=False)
    near = None if gap is None else is_near_tie(gap, exact=False)
    named = ["the end" if token is None else repr(token)[:40] for token in tokens]
    words = f"token {index + 1} is {named[1]}, not {named[0]}; {how}"
    return {"position": index + 1, "tokens": tokens, "gap": gap, "near_tie": near, "words": words}


def _laws(both: Both, prompts: int, *, variation: float, progress: Progress | None) -> dict[str, Any]:
    for choices in CHOICES:
        try:
            choices = min(map(len, both(0, 1, choices)))
            break
        except ValueError as error:  # llama.cpp gives no more than it has slots
            if choices == 1 or "found status 4" not in str(error):
                raise
    firsts: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    seen: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])

    def ask_both(turn: int, report: Report) -> int:
        for side, answers in enumerate(both(turn, ASKED_TOKENS, choices)):
            for answer in answers:
                text = (turn % prompts, *answer.tokens[:COMPARED_TOKENS])
                seen[text][side] += 1
                firsts[text[:2]][side] += 1
        report(1.0)
        return 2

    turns = prompts * math.ceil(samples_needed(variation) / (prompts * choices))
    requests = sum(one_by_one(turns, ask_both, noun="request", progress=progress))
    control, law = compare_laws(firsts, given=1), compare_laws(seen, given=2)
    lossless: bool | None = law.p_value >= FALSE_ALARM
    p, shown = f"(p = {law.p_value:.2g})", power(variation, sum(law.samples) / 2, law.degrees_of_freedom)
    if control.p_value < FALSE_ALARM:
        lossless, p = None, f"(p = {control.p_value:.2g})"
        verdict = f"Cannot be told: already the first tokens, which no draft touches, have two laws {p}."
    elif not law.degrees_of_freedom:
        lossless = None
        verdict = "Cannot be told: a prompt has one answer only; take others or a higher temperature."
    elif lossless:
        verdict = f"No bias found {p}: one of total variation {variation:g} would show with probability {shown:.2f}."
    else:
        verdict = f"Not lossless: tokens 2 to {COMPARED_TOKENS} have another law with a draft {p}."
    return {
        "lossless": lossless, "verdict": verdict, "requests": requests, "samples": law.samples,
        "p_value": law.p_value, "control_p_value": control.p_value, "degrees_of_freedom": law.degrees_of_freedom,
        "false_alarm": FALSE_ALARM, "variation": variation, "first_difference": None, "gap": None, "power": shown,
    }  # fmt: skip
