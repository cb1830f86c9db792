"""Test whether a server's speculation is lossless by sending the same requests with and without a draft.

At temperature 0, answers are compared token by token; where they differ, the plain server's logits show whether it is a
near-tie. Above 0, the distribution of tokens 2 to 4 given the first is compared. The first token is never drafted and
serves as a control.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import harmonic_mean
from typing import Any

from sequoia_core.measuring.prompt_loop import Progress, Report, measure_each
from sequoia_core.planning.near_ties import describe_gap, is_near_tie

from .completions import Answer, Token, ask_side
from .local_server import ask, may_be_same_server
from .readings import read_counts
from .two_samples import (
    AUDIT_FALSE_ALARM,
    POWER,
    TwoSampleTest,
    alike_within_requests,
    compare_distributions,
    power,
    samples_needed,
)

COMPARED_TOKENS = 4  # number of tokens compared in each sampled answer
REQUESTED_TOKENS = COMPARED_TOKENS + 2  # two spare tokens, because servers draft less near the end of an answer
CHOICES = (64, 16, 4, 1)  # answers to ask for per request, tried in this order
SEED_STRIDE = max(CHOICES)  # spacing of request seeds: servers add an answer's index to its request's seed


AskBoth = Callable[..., list[list[Answer]]]  # (turn, length, answers per request) -> the answers of each side


class _Sides:
    """Sends requests to both servers in turn and counts the drafts of each."""

    def __init__(self, sides: tuple[str, str], prompts: Sequence[str], sampling: Mapping[str, Any]) -> None:
        self._sides = sides
        self._prompts = prompts
        self._sampling = sampling
        self._counted = {address: _count_drafts(address) for address in sides}
        self.drafts: list[int | None] = [0, 0]

    def ask(self, turn: int, tokens: int, choices: int = 1) -> list[list[Answer]]:
        answers = []
        for index, address in enumerate(self._sides):
            sampling = {**self._sampling, "seed": SEED_STRIDE * (2 * turn + index)}
            answers.append(ask_side(address, self._prompts[turn % len(self._prompts)], tokens, sampling, choices))
            before = self._counted[address]
            drafts = self.drafts[index]
            if before is None or drafts is None:
                self.drafts[index] = None
                continue
            after = self._counted[address] = _count_drafts(address)
            self.drafts[index] = None if after is None or after < before else drafts + after - before
        self._check_plain()
        return answers

    def _check_plain(self) -> None:
        """Raise ValueError if the plain server drafted, or if it may be the audited server itself."""
        audited, plain = self._sides
        drafts = self.drafts[1]
        if drafts or (drafts is None and may_be_same_server(plain, audited)):
            found = "no draft counters"
            if drafts is not None:
                found = f"{drafts:,} drafts in a request that should have none"
            raise ValueError(
                f"{plain}: found {found}, expected no drafts: start a second server without a draft and pass its "
                "address with --against"
            )


def audit(
    sides: tuple[str, str],
    prompts: Sequence[str],
    *,
    sampling: Mapping[str, Any],
    length: int,
    variation: float,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Send requests with and without a draft, in turn, and compare the answers.

    Args:
        sides: addresses of the server with a draft and of the one without.
        sampling: request fields, including `temperature`.
        length: number of tokens in an answer at temperature 0.
        variation: total variation of the bias to detect above temperature 0.

    Returns:
        JSON-ready: `lossless`, None if unknown; `verdict`, a sentence; the number of requests and the test results.
    """
    both = _Sides(sides, prompts, sampling)
    if sampling["temperature"]:
        record = _compare_samples(both.ask, len(prompts), variation=variation, progress=progress)
    else:
        record = _compare_texts(both.ask, len(prompts), length=length, progress=progress)
    drafts, plain_drafts = both.drafts
    record |= {"drafts": drafts, "prompts": len(prompts), "sampling": dict(sampling)}
    if drafts == 0:
        record |= {"lossless": None, "verdict": "The server drafted nothing, so nothing was tested."}
    elif drafts is None and record["lossless"]:
        silent = "the server does not report" if plain_drafts == 0 else "neither server reports"
        difference = "difference beyond near ties" if record.get("differences") else "difference"
        verdict = f"No {difference} found, but {silent} whether it drafted: start it with --metrics."
        return record | {"lossless": None, "verdict": verdict}
    elif drafts is None:
        record["verdict"] += " The server does not report whether it drafted."
    if plain_drafts is None:
        record["verdict"] += " The plain server does not report whether it drafted."
    return record


def _count_drafts(address: str) -> int | None:
    """Return the number of drafts a server has counted since its start; None if it does not count them."""
    try:
        return read_counts(ask(address, "/metrics"), address).drafts
    except ValueError:  # llama.cpp serves metrics only with --metrics
        return None


def _compare_texts(both: AskBoth, prompts: int, *, length: int, progress: Progress | None) -> dict[str, Any]:
    # The plain server's logits at each position after the first at which the answers agree.
    agreed: list[Mapping[Token, float]] = []

    def compare_prompt(turn: int, report: Report) -> dict[str, Any]:
        (answer,), (plain,) = both(turn, length)
        report(1.0)
        difference = first_difference(answer, plain)
        equal = len(plain.tokens) if difference["tokens"] is None else difference["position"] - 1
        agreed.extend(plain.tops[index] if plain.tops else {} for index in range(1, equal))
        return difference | {"prompt": turn}

    results = list(measure_each(prompts, compare_prompt, progress=progress))
    differences = [result for result in results if result["tokens"]]
    worst = min(differences, key=lambda result: (False, None, True).index(result["near_tie"]), default=None)
    lossless = worst is None or worst["near_tie"]
    same = prompts - len(differences)
    doubt = ""
    if lossless:
        doubt = _weak_evidence(agreed, sum(result["near_tie"] is True for result in differences), prompts)
    if doubt:
        lossless = None
    outcome = {True: "Lossless", False: "Not lossless", None: "Inconclusive"}[lossless]
    verdict = f"{outcome}: {same} of {prompts} answers of up to {length} tokens are the same with and without a draft"
    verdict += f"{doubt}."
    if worst is not None:
        verdict += f" In prompt {worst['prompt'] + 1}, {worst['words']}."
    return {
        "lossless": lossless,
        "verdict": verdict,
        "requests": 2 * prompts,
        "first_difference": worst,
        "gap": worst and worst["gap"],
        "differences": prompts - same,
        "p_value": None,
        "power": None,
    }


def _weak_evidence(agreed: Sequence[Mapping[Token, float]], parted: int, prompts: int) -> str:
    """Return why answers that agree up to near-ties are not evidence of losslessness; an empty string if they are.

    Rounding swaps the tokens of a near-tie at most half the time, so the answers count as evidence only if at most half
    of them diverged, and if near-ties agreed at least as often as they diverged.
    """
    if len(agreed) < (COMPARED_TOKENS - 1) * prompts:
        return f", but only {len(agreed)} tokens after the first, which is never drafted, could be compared"
    highest = [sorted(tops.values())[-2:] for tops in agreed]
    ties = sum(len(pair) == 2 and is_near_tie(pair[1] - pair[0], exact=False) for pair in highest)
    if parted > min(prompts / 2, ties):
        return f", but {parted} diverge at a near tie ({ties} near ties agree), more often than rounding explains"
    return ""


def first_difference(found: Answer, plain: Answer) -> dict[str, Any]:
    """Return where two answers differ, the tokens there, and the gap between their logits on the plain server.

    If the plain server's list of most likely tokens lacks one of them, the gap is a lower bound. `near_tie` is None if
    that server's logits do not show whether it is one; the logits of the server with a draft are not evidence.
    """
    if found.tokens == plain.tokens:
        return {"tokens": None, "near_tie": True, "gap": None}
    pairs = list(zip(plain.tokens, found.tokens, strict=False))
    index = next((index for index, (expected, token) in enumerate(pairs) if expected != token), len(pairs))
    tokens: list[Any] = [answer.tokens[index] if index < len(answer.tokens) else None for answer in (plain, found)]
    tops = plain.tops[index] if index < len(plain.tops) else {}
    greedy = tokens[0] in tops and is_near_tie(max(tops.values()) - tops[tokens[0]], exact=False)
    gap = None
    near = None
    reason = "the plain server's logits do not show whether rounding is the cause"
    if greedy and type(tokens[0]) is type(tokens[1]):  # both are ids, or both are strings
        listed = tokens[1] in tops
        least = tops[tokens[0]] - tops.get(tokens[1], min(tops.values()))
        if listed or not is_near_tie(least, exact=False):
            gap = least
            near = is_near_tie(least, exact=False)
            reason = describe_gap(least, exact=False).replace("by", "by" if listed else "by at least", 1)
    names = ["the end" if token is None else repr(token)[:40] for token in tokens]
    words = f"token {index + 1} is {names[1]}, not {names[0]}; {reason}"
    return {"position": index + 1, "tokens": tokens, "gap": gap, "near_tie": near, "words": words}


def _compare_samples(both: AskBoth, prompts: int, *, variation: float, progress: Progress | None) -> dict[str, Any]:
    seen: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    firsts: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    answered: tuple[list, list] = ([], [])
    needed = samples_needed(variation) / prompts
    # Each prompt is sent at least twice, because a single request cannot reveal repeated seeds.
    choices = min(_count_choices(both), math.ceil(needed / 2))

    def ask_both(turn: int, report: Report) -> int:
        for side, answers in enumerate(both(turn, REQUESTED_TOKENS, choices)):
            answered[side].append((turn % prompts, *(answer.tokens for answer in answers)))
            for answer in answers:
                text = (turn % prompts, *answer.tokens[:COMPARED_TOKENS])
                seen[text][side] += 1
                firsts[text[:2]][side] += 1
        report(1.0)
        return 2

    turns = prompts * math.ceil(needed / choices)
    requests = sum(measure_each(turns, ask_both, noun="request", progress=progress))
    control = compare_distributions(firsts, given=1)
    test = compare_distributions(seen, given=2)
    reached = power(variation, harmonic_mean(test.samples), test.degrees_of_freedom)
    lossless, verdict = _judge_samples(answered, control, test, variation, reached)
    return {
        "lossless": lossless,
        "verdict": verdict,
        "requests": requests,
        "samples": test.samples,
        "p_value": test.p_value,
        "control_p_value": control.p_value,
        "degrees_of_freedom": test.degrees_of_freedom,
        "false_alarm": AUDIT_FALSE_ALARM,
        "variation": variation,
        "first_difference": None,
        "gap": None,
        "power": reached,
    }


def _count_choices(both: AskBoth) -> int:
    """Return the largest number of answers per request that both servers give."""
    for choices in CHOICES:
        try:
            return min(map(len, both(0, 1, choices)))
        except ValueError as error:  # llama.cpp returns no more answers than it has slots
            if choices == 1 or "found status 4" not in str(error):
                raise
    raise AssertionError("the last of CHOICES returns or raises")


def _judge_samples(
    answered: tuple[list, list], control: TwoSampleTest, test: TwoSampleTest, variation: float, reached: float
) -> tuple[bool | None, str]:
    """Return whether the server is lossless (None if unknown), and the verdict."""
    bias = f"a bias of total variation {variation:g} would be detected with a probability of"
    unknown = ""
    if any(map(repeats, answered)):
        unknown = (
            "the server gives the same answer whenever a request is repeated. Either it ignores the seed, or a prompt "
            "has only one likely answer: use other prompts or a higher temperature."
        )
    elif any(map(alike_within_requests, answered)):
        unknown = (
            "answers to the same request are identical too often for independent draws. The server may use one seed "
            "for several answers."
        )
    elif control.p_value < AUDIT_FALSE_ALARM:
        p = f"(p = {control.p_value:.2g})"
        unknown = f"even the first tokens, which are never drafted, have different distributions {p}."
    elif not test.degrees_of_freedom:
        unknown = "each prompt has only one likely answer; use other prompts or a higher temperature."
    elif test.p_value >= AUDIT_FALSE_ALARM and reached < POWER:  # the server gave fewer answers than were requested
        unknown = f"{bias} only {reached:.2f}."
    if unknown:
        return None, f"Inconclusive: {unknown}"
    p = f"(p = {test.p_value:.2g})"
    if test.p_value >= AUDIT_FALSE_ALARM:
        return True, f"No bias found {p}: {bias} {reached:.2f}."
    return False, f"Not lossless: tokens 2 to {COMPARED_TOKENS} have a different distribution with a draft {p}."


def repeats(requests: Sequence[tuple]) -> bool:
    """Return whether repeated requests got the same answers, or all answers within each request were the same.

    Both are unlikely for independent answers: if a share e of a side's N answers differ from the most likely answer to
    their prompt, each has a probability of at most exp(-e N / 2), which is below 1 % if e N is at least 10.

    Args:
        requests: one side's requests, each given as its prompt's index followed by the tokens of its answers, in order.
    """
    asked = len({prompt for prompt, *_ in requests})
    again = len(set(requests)) == asked < len(requests)
    return again or all(len(answers) > 1 and len(set(answers)) == 1 for _, *answers in requests)
