"""Is a server's speculation lossless? The same requests go to it with a draft and without.

At temperature 0 token by token: where they part, the gap of the two logits there tells whether rounding did it. Above 0
by the law of tokens 2 to 4, given the first: the first comes from reading the prompt and is never drafted, so that a
test of it cannot fail; it is the control instead, which finds servers that differ in something else. Answers are
foreign: bounded by `ask`, and their shapes are checked here. Knows no models and starts no servers.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..design.near_ties import gap_words, is_near_tie
from ..design.same_law import FALSE_ALARM, LawTest, compare_laws, samples_needed
from ..files.local_server import ask
from ..files.server_readings import counts_from_bytes
from .prompt_loop import Progress, Report, one_by_one

COMPARED = 4  # tokens of each sampled answer
ASKED = COMPARED + 2  # servers draft less where an answer ends
MOST_CHOICES = 64  # answers to one request
MOST_SAMPLES = 2**20
TOPS = 5  # most likely tokens to be told with each, which vLLM allows
REQUEST_SEC = 600
Token = int | str
SHAPE = "expected choices with token_ids, or logprobs with the tokens"


@dataclass(frozen=True, slots=True)
class Side:
    """A server, with or without a draft, and the fields that its requests have beside the usual ones."""

    address: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and at each the log-probabilities of the most likely ones, where the server told."""

    tokens: tuple[Token, ...]
    tops: tuple[Mapping[Token, float], ...]


def ask_side(side: Side, prompt: str, length: int, sampling: Mapping[str, float], choices: int = 1) -> list[Answer]:
    """Return a server's answers to one prompt.

    Raises:
        ValueError: where there is no answer, too few, or none that tells its tokens.
    """
    greedy = not sampling["temperature"]
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": length,
        "n": choices,
        "logprobs": TOPS if greedy else 1,
        **sampling,
    }
    body |= {"top_k": -1, "min_p": 0, "ignore_eos": True}  # the law asked for, not a server's own
    body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}  # vLLM; others do not look
    content = ask(side.address, "/v1/completions", json.dumps(body | dict(side.fields)).encode(), seconds=REQUEST_SEC)
    try:
        found = [_answer(choice) for choice in json.loads(content)["choices"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        said = " ".join(content[:120].decode(errors="replace").split())
        raise ValueError(f"{side.address}: found {said!r}, {SHAPE}") from error
    if not 1 <= len(found) <= choices:
        raise ValueError(f"{side.address}: found {len(found)} choices, expected {choices}")
    return found


def _answer(choice: Mapping[str, Any]) -> Answer:
    logprobs = choice.get("logprobs") or {}
    rows = logprobs.get("content")  # llama.cpp
    if rows is not None:
        tokens = [_name(row) for row in rows]
        tops = [{_name(top): float(top["logprob"]) for top in row.get("top_logprobs") or ()} for row in rows]
    else:  # vLLM, SGLang
        tokens = logprobs["tokens"] if "tokens" in logprobs else choice["token_ids"]
        tops = [
            {token: float(value) for token, value in (top or {}).items()} for top in logprobs.get("top_logprobs") or ()
        ]
    if not tokens or not all(type(token) in (int, str) for token in tokens):
        raise ValueError("no tokens")
    return Answer(tuple(tokens), tuple(tops))


def _name(row: Mapping[str, Any]) -> Token:
    return row["id"] if "id" in row else row["token"]


def choices_at_once(sides: Sequence[Side], prompt: str, sampling: Mapping[str, float]) -> int:
    """Return how many answers to one request all servers give."""
    most = MOST_CHOICES
    for side in sides:
        while True:
            try:
                most = len(ask_side(side, prompt, 1, sampling, most))
                break
            except ValueError as error:
                if most == 1 or "found status 4" not in str(error):
                    raise
                most //= 2
    return most


def audit(
    sides: tuple[Side, Side],
    prompts: Sequence[str],
    *,
    sampling: Mapping[str, float],
    length: int,
    variation: float,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Send requests with a draft and without, in turns, and compare the answers.

    Args:
        sides: with a draft, and without.
        sampling: the fields `temperature` and `top_p`, perhaps `model`.
        length: tokens of an answer at temperature 0.
        variation: the bias that is to be found above temperature 0.

    Returns:
        JSON-ready: `lossless`, None where that cannot be told; `verdict`, a sentence; what was sent and what it shows.

    Raises:
        ValueError: also where the side without a draft drafts.
    """
    audited, plain = sides
    earlier = _metrics(plain)
    ask_side(plain, prompts[0], 2 * ASKED, sampling)
    drafted = _drafts(plain, earlier)
    if drafted or (drafted is None and plain.address == audited.address):
        told = "no counters of drafts" if drafted is None else f"{drafted:,} drafts in a request that should have none"
        raise ValueError(
            f"{plain.address}: found {told} (sent {json.dumps(plain.fields)}), expected none drafted: "
            "start a second server without a draft and name it with --against"
        )
    earlier = _metrics(audited)
    compare = _compare_laws if sampling["temperature"] else _compare_texts
    found = compare(sides, prompts, sampling, length, variation, progress)
    drafts = _drafts(audited, earlier)
    if drafts == 0:
        found |= {"lossless": None, "verdict": "The server drafted nothing, so nothing was tested."}
    elif drafts is None:
        found["verdict"] += " Whether it drafted at all, it does not tell."
    return found | {"drafts": drafts, "prompts": len(prompts), "sampling": dict(sampling)}


def _metrics(side: Side) -> bytes | None:
    try:
        return ask(side.address, "/metrics")
    except ValueError:  # llama.cpp has them with --metrics only
        return None


def _drafts(side: Side, earlier: bytes | None) -> int | None:
    """Return how often a server drafted since a reading of its metrics; None where it does not count that."""
    if earlier is None:
        return None
    try:
        return counts_from_bytes(ask(side.address, "/metrics"), side.address, earlier).drafts
    except ValueError as error:
        return 0 if "no drafts" in str(error) else None


def _compare_texts(
    sides: tuple[Side, Side],
    prompts: Sequence[str],
    sampling: Mapping[str, float],
    length: int,
    variation: float,
    progress: Progress | None,
) -> dict[str, Any]:
    def both(place: int, report: Report) -> list[Answer]:
        answers = [ask_side(side, prompts[place], length, sampling)[0] for side in sides]
        report(1.0)
        return answers

    parted = []
    for place, answers in enumerate(one_by_one(len(prompts), both, progress=progress)):
        difference = first_difference(*answers)
        if difference is not None:
            parted.append({"prompt": place} | difference)
    worst = min(parted, key=lambda each: {False: 0, None: 1, True: 2}[each["near_tie"]], default=None)
    same = f"{len(prompts) - len(parted)} of {len(prompts)} answers of {length} tokens are the same with and without"
    if worst is None or worst["near_tie"]:
        lossless, verdict = True, f"Lossless: {same}" + ("; the others part at near ties." if worst else ".")
    elif worst["near_tie"] is None:
        lossless, verdict = None, f"Cannot be told: {same}; another parts where the server tells no two logits."
    else:
        lossless, verdict = False, f"Not lossless: {same}; another parts where there is no near tie."
    return {
        "lossless": lossless, "verdict": verdict, "requests": 2 * len(prompts), "length": length,
        "first_difference": worst, "gap": worst and worst["gap"], "differences": parted, "p_value": None, "power": None,
    }  # fmt: skip


def first_difference(found: Answer, wanted: Answer) -> dict[str, Any] | None:
    """Return where two answers part, the tokens there, and the gap of their logits where a server told both."""
    if found.tokens == wanted.tokens:
        return None
    pairs = list(zip(wanted.tokens, found.tokens, strict=False))
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    tokens = [answer.tokens[place] if place < len(answer.tokens) else None for answer in (wanted, found)]
    gap = None
    for answer in (found, wanted):  # the plain server's word is the last
        told: Mapping[Any, float] = answer.tops[place] if place < len(answer.tops) else {}
        if set(tokens) <= set(told) and math.isfinite(difference := told[tokens[0]] - told[tokens[1]]):
            gap = difference
    near = None if gap is None else is_near_tie(gap, exact=False)
    words = None if gap is None else gap_words(gap, exact=False)
    return {"position": place + 1, "tokens": tokens, "gap": gap, "near_tie": near, "words": words}


def _compare_laws(
    sides: tuple[Side, Side],
    prompts: Sequence[str],
    sampling: Mapping[str, float],
    length: int,
    variation: float,
    progress: Progress | None,
) -> dict[str, Any]:
    choices = choices_at_once(sides, prompts[0], sampling)
    rounds = math.ceil(samples_needed(variation) / (len(prompts) * choices))
    seen: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])

    def both(turn: int, report: Report) -> bool:
        place = turn % len(prompts)
        for number, side in enumerate(sides):
            answers = ask_side(side, prompts[place], ASKED, sampling, choices)
            if len(answers) != choices:
                raise ValueError(f"{side.address}: found {len(answers)} choices, expected {choices} as before")
            for answer in answers:
                seen[place, *answer.tokens[:COMPARED]][number] += 1
        report(1.0)
        return True

    requests = 2 * len(list(one_by_one(rounds * len(prompts), both, noun="request", progress=progress)))
    firsts: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    for text, counts in seen.items():
        firsts[text[:2]] = [sum(pair) for pair in zip(firsts[text[:2]], counts, strict=True)]
    control, law = compare_laws(firsts, given=1), compare_laws(seen, given=2)
    lossless, verdict = _verdict(control, law, variation)
    return {
        "lossless": lossless, "verdict": verdict, "requests": requests, "choices": choices, "samples": law.samples[0],
        "first_difference": None, "gap": None, "p_value": law.p_value, "control_p_value": control.p_value,
        "false_alarm": FALSE_ALARM, "variation": variation, "power": law.power(variation),
        "statistic": law.statistic, "degrees_of_freedom": law.degrees_of_freedom,
        "furthest": None if law.furthest is None else {"prompt": law.furthest[0], "begins": law.furthest[1:]},
        "shares": law.shares,
    }  # fmt: skip


def _verdict(control: LawTest, law: LawTest, variation: float) -> tuple[bool | None, str]:
    p = f"(p = {law.p_value:.2g})"
    if not control.same:
        return None, (
            f"Cannot be told: already the first tokens, which no draft touches, have different laws "
            f"(p = {control.p_value:.2g}), so the two sides differ in more than speculation."
        )
    if not law.degrees_of_freedom:
        return None, "Cannot be told: each prompt has one answer only; take others or a higher temperature."
    if law.same:
        return True, (
            f"No bias found {p}: one of total variation {variation:g} would have shown with a probability of "
            f"{law.power(variation):.2f}."
        )
    return False, (
        f"Not lossless: tokens 2 to {COMPARED} have another law with a draft than without {p}; "
        f"of lossless servers {FALSE_ALARM:.0%} are called so."
    )
