"""Is a server's speculation lossless? The same requests go to it with a draft and without.

At temperature 0 answers are compared token by token. Where they part, the plain server's logits tell a near tie. Above
0 it is the law of tokens 2 to 4, given the first, which is never drafted and so is the control.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import harmonic_mean
from typing import Any, NamedTuple

from ..design.near_ties import gap_words, is_near_tie
from ..files.safe_files import read_json
from ..studies.prompt_loop import Progress, Report, one_by_one
from .local_server import UNCUT, ask, same_server
from .readings import read_counts
from .same_law import FALSE_ALARM, POWER, alike_within_requests, compare_laws, power, samples_needed

COMPARED_TOKENS = 4  # tokens of each sampled answer
ASKED_TOKENS = COMPARED_TOKENS + 2  # servers draft less where an answer ends
CHOICES = (64, 16, 4, 1)  # answers to one request, tried in turn
SEED_STRIDE = max(CHOICES)  # servers add the number of an answer to the seed of its request
MAX_LOGPROB = 1e-3  # rounding may lift a probability above 1
REQUEST_SEC = 600
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
        answers = [_answer(choice, length) for choice in read_json(content)["choices"][:choices]]
    except ValueError as error:
        raise ValueError(f"{side.address}: {error}") from error
    except (LookupError, TypeError, AttributeError):
        answers = []
    if not answers:
        said = " ".join(content[:120].decode(errors="replace").split())
        raise ValueError(f"{side.address}: found {said!r}, expected choices with token_ids or logprobs of tokens")
    return answers


def _answer(choice: Mapping[str, Any], length: int) -> Answer:
    told = choice.get("logprobs") or {}
    if "content" in told:  # llama.cpp
        rows = [[each, *(each.get("top_logprobs") or ())] for each in told["content"]]
        pairs = [[(each["id"] if "id" in each else each["token"], each["logprob"]) for each in row] for row in rows]
        # Without ids two tokens may have one text: the likelier one comes first, and counts.
        tokens, tops = [row[0][0] for row in pairs], [dict(row[:0:-1]) for row in pairs]
    else:  # vLLM, SGLang
        tokens = told["tokens"] if "tokens" in told else choice["token_ids"]
        tops = [{**(each or {})} for each in told.get("top_logprobs") or ()]
    if type(tokens) is not list or not tokens:
        raise TypeError("an answer without tokens")
    if len(tokens) > length or len(tops) not in (0, len(tokens)):
        raise ValueError(
            f"found {len(tokens):,} tokens with {len(tops):,} lists of log-probabilities, expected at most {length:,} "
            "tokens, and a list for each or none"
        )
    for token in [*tokens, *chain(*tops)]:
        if type(token) is not str and (type(token) is not int or token < 0):
            raise ValueError(f"found {str(token)[:40]} as a token, expected its id or text")
    for value in chain(*(each.values() for each in tops)):
        if type(value) not in (int, float) or value > MAX_LOGPROB:
            raise ValueError(f"found {str(value)[:40]!r} as a log-probability, expected a number up to 0")
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

    counted = {side.address: _drafts_so_far(side.address) for side in sides}
    drafts: list[int | None] = [0, 0]

    def both(turn: int, tokens: int, choices: int = 1) -> list[list[Answer]]:
        answers = []
        for index, side in enumerate(sides):
            seeded = {**sampling, "seed": SEED_STRIDE * (2 * turn + index)}
            answers.append(ask_side(side, prompts[turn % len(prompts)], tokens, seeded, choices))
            before, already = counted[side.address], drafts[index]
            if before is None or already is None:
                drafts[index] = None
                continue
            after = counted[side.address] = _drafts_so_far(side.address)
            drafts[index] = None if after is None or after < before else already + after - before
        _check_plain(sides, drafts[1])
        return answers

    compare = partial(_laws, variation=variation) if sampling["temperature"] else partial(_texts, length=length)
    record = compare(both, len(prompts), progress=progress)
    about = {"drafts": drafts[0], "prompts": len(prompts), "sampling": dict(sampling)}
    if drafts[0] == 0:
        record |= {"lossless": None, "verdict": "The server drafted nothing, so nothing was tested."}
    elif drafts[0] is None and record["lossless"]:
        silent = "the server does not report" if drafts[1] == 0 else "neither server reports"
        difference = "difference beyond near ties" if record.get("differences") else "difference"
        verdict = f"No {difference} found, but {silent} whether it drafted: start it with --metrics."
        return record | about | {"lossless": None, "verdict": verdict}
    elif drafts[0] is None:
        record["verdict"] += " The server does not report whether it drafted."
    if drafts[1] is None:
        record["verdict"] += " The plain server does not report whether it drafted."
    return record | about


def _drafts_so_far(address: str) -> int | None:
    """Return the drafts that a server counted since its start; None where it does not count them."""
    try:
        return read_counts(ask(address, "/metrics"), address).drafts
    except ValueError:  # llama.cpp has metrics with --metrics only
        return None


def _check_plain(sides: tuple[Side, Side], drafts: int | None) -> None:
    """Refuse a plain side that drafted, or that may be the audited server: it would be compared with itself."""
    audited, plain = sides
    if drafts or (drafts is None and same_server(plain.address, audited.address)):
        told = "no counters of drafts" if drafts is None else f"{drafts:,} drafts in a request that should have none"
        raise ValueError(
            f"{plain.address}: found {told} (sent {json.dumps(plain.fields)}), expected none drafted: "
            "start a second server without a draft and name it with --against"
        )


def _texts(both: Both, prompts: int, *, length: int, progress: Progress | None) -> dict[str, Any]:
    agreed: list[Mapping[Token, float]] = []  # the plain server's logits at equal tokens after the first

    def parted(turn: int, report: Report) -> dict[str, Any]:
        (answer,), (wanted,) = both(turn, length)
        report(1.0)
        one = first_difference(answer, wanted)
        equal = len(wanted.tokens) if one["tokens"] is None else one["position"] - 1
        agreed.extend(wanted.tops[index] if wanted.tops else {} for index in range(1, equal))
        return one | {"prompt": turn}

    each = list(one_by_one(prompts, parted, progress=progress))
    parting = [one for one in each if one["tokens"]]
    worst = min(parting, key=lambda one: (False, None, True).index(one["near_tie"]), default=None)
    lossless, same = worst is None or worst["near_tie"], prompts - len(parting)
    doubt = _doubt(agreed, sum(one["near_tie"] is True for one in parting), prompts) if lossless else ""
    lossless = None if doubt else lossless
    said = {True: "Lossless", False: "Not lossless", None: "Cannot be told"}[lossless]
    verdict = f"{said}: {same} of {prompts} answers of up to {length} tokens are the same with a draft and without"
    verdict += f"{doubt}."
    if worst is not None:
        verdict += f" In prompt {worst['prompt'] + 1} {worst['words']}."
    return {
        "lossless": lossless, "verdict": verdict, "requests": 2 * prompts, "first_difference": worst,
        "gap": worst and worst["gap"], "differences": prompts - same, "p_value": None, "power": None,
    }  # fmt: skip


def _doubt(agreed: Sequence[Mapping[Token, float]], parted: int, prompts: int) -> str:
    """Return why equal answers, apart from those parted at near ties, are no evidence; empty where they are.

    Rounding swaps the tokens of a near tie at most every second time, so as many near ties must have agreed.
    """
    if len(agreed) < (COMPARED_TOKENS - 1) * prompts:
        return f", but only {len(agreed)} tokens after the first, which no draft touches, could be compared"
    highest = [sorted(tops.values())[-2:] for tops in agreed]
    ties = sum(len(pair) == 2 and is_near_tie(pair[1] - pair[0], exact=False) for pair in highest)
    if parted > min(prompts / 2, ties):
        return f", but {parted} part at a near tie ({ties} near ties agree), more than rounding explains"
    return ""


def first_difference(found: Answer, wanted: Answer) -> dict[str, Any]:
    """Return where two answers part, the tokens there, and the gap of their logits by the plain server, `wanted`.

    Where its list of the most likely tokens lacks one, the gap is the least that it can be. `near_tie` is None where
    the plain server does not tell: what the one with a draft says of its logits is no evidence.
    """
    if found.tokens == wanted.tokens:
        return {"tokens": None, "near_tie": True, "gap": None}
    pairs = list(zip(wanted.tokens, found.tokens, strict=False))
    index = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
    tokens: list[Any] = [answer.tokens[index] if index < len(answer.tokens) else None for answer in (wanted, found)]
    told = wanted.tops[index] if index < len(wanted.tops) else {}
    greedy = tokens[0] in told and is_near_tie(max(told.values()) - told[tokens[0]], exact=False)
    gap, near, how = None, None, "the plain server's logits do not tell whether rounding decides"
    if greedy and type(tokens[0]) is type(tokens[1]):  # both ids, or both texts
        listed = tokens[1] in told
        least = told[tokens[0]] - told.get(tokens[1], min(told.values()))
        if listed or not is_near_tie(least, exact=False):
            gap, near = least, is_near_tie(least, exact=False)
            how = gap_words(least, exact=False).replace("by", "by" if listed else "by at least", 1)
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
    answered: tuple[list, list] = ([], [])

    def ask_both(turn: int, report: Report) -> int:
        for side, answers in enumerate(both(turn, ASKED_TOKENS, choices)):
            answered[side].append((turn % prompts, *(answer.tokens for answer in answers)))
            for answer in answers:
                text = (turn % prompts, *answer.tokens[:COMPARED_TOKENS])
                seen[text][side] += 1
                firsts[text[:2]][side] += 1
        report(1.0)
        return 2

    needed = samples_needed(variation) / prompts
    choices = min(choices, math.ceil(needed / 2))  # answers to two requests or more can be compared
    turns = prompts * math.ceil(needed / choices)
    requests = sum(one_by_one(turns, ask_both, noun="request", progress=progress))
    control, law = compare_laws(firsts, given=1), compare_laws(seen, given=2)
    lossless: bool | None = law.p_value >= FALSE_ALARM
    p, shown = f"(p = {law.p_value:.2g})", power(variation, harmonic_mean(law.samples), law.degrees_of_freedom)
    bias = f"a bias of total variation {variation:g} would be detected with probability"
    if any(map(repeats, answered)):
        lossless = None
        verdict = (
            "Cannot be told: the server gives the same answer to a request every time. It ignores the seed, or a "
            "prompt has only one answer: take other prompts or a higher temperature."
        )
    elif any(map(alike_within_requests, answered)):
        lossless = None
        verdict = (
            "Cannot be told: the server gives the same answer to a request too often for independent draws. It may use "
            "one seed for several answers."
        )
    elif control.p_value < FALSE_ALARM:
        lossless, p = None, f"(p = {control.p_value:.2g})"
        verdict = f"Cannot be told: already the first tokens, which no draft touches, have two laws {p}."
    elif not law.degrees_of_freedom:
        lossless = None
        verdict = "Cannot be told: a prompt has only one answer; take other prompts or a higher temperature."
    elif lossless and shown < POWER:  # it gave fewer answers than it was asked for
        lossless = None
        verdict = f"Cannot be told: {bias} only {shown:.2f}."
    elif lossless:
        verdict = f"No bias found {p}: {bias} {shown:.2f}."
    else:
        verdict = f"Not lossless: tokens 2 to {COMPARED_TOKENS} have another law with a draft {p}."
    return {
        "lossless": lossless, "verdict": verdict, "requests": requests, "samples": law.samples,
        "p_value": law.p_value, "control_p_value": control.p_value, "degrees_of_freedom": law.degrees_of_freedom,
        "false_alarm": FALSE_ALARM, "variation": variation, "first_difference": None, "gap": None, "power": shown,
    }  # fmt: skip


def repeats(requests: Sequence[tuple]) -> bool:
    """Return whether repeated requests got the same answers, or all answers to each request were alike.

    Both are unlikely where answers are independent: where a share e of a side's N answers differs from the most likely
    one of their prompts, each has a probability of at most exp(-e N / 2), which is below 1 % from e N = 10 on.

    Args:
        requests: of one side, each the number of its prompt and the tokens of its answers in their order.
    """
    asked = len({prompt for prompt, *_ in requests})
    again = len(set(requests)) == asked < len(requests)
    return again or all(len(answers) > 1 and len(set(answers)) == 1 for _, *answers in requests)
