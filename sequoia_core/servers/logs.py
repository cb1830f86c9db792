"""What servers say of speculative decoding in their logs: windows (vLLM), requests (llama.cpp) or averages (SGLang).

llama.cpp's lines of requests come in three forms: totals alone, with the mean length, with rates by position too. Its
`statistics` lines are running totals of each drafter, so the last one counts, or the last before they begin again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import mul
from typing import NamedTuple

from ..files.gguf_header import LLAMA_CPP
from .counts import MAX_POSITIONS, SGLANG, VLLM, RequestTotals, ServerCounts

MAX_LINE = 16_384  # characters of a line that counts
VLLM_MARK, VLLM_V0_MARK, REQUEST_MARK, EVAL_MARK, TOTALS_MARK, SGLANG_MARK = (
    "SpecDecoding metrics:", "Speculative metrics:", "draft acceptance", " eval time =", "statistics ", "accept len:"
)  # fmt: skip
# Each begins behind its mark and tries no place twice, so that reading takes time linear in the line.
_VLLM = re.compile(
    r".*?Accepted: (\d{1,16}) tokens, Drafted: (\d{1,16}) tokens, "
    r"Per-position acceptance rate: ([\d., ]+?),? (?:Avg )?Draft acceptance"
)
_VLLM_V0 = re.compile(
    r".*?Number of speculative tokens: (\d{1,4}), Number of accepted tokens: (\d{1,16}), "
    r"Number of draft tokens: (\d{1,16}), Number of emitted tokens: (\d{1,16})(?!\d)"
)
_REQUEST = re.compile(r"(?: rate)? = *+[\d.]++ \( *+(\d{1,16}) accepted / *+(\d{1,16}) generated\)(.*)")
_EVAL = re.compile(r".*?/ ++(\d{1,16}) (?:tokens|runs)")
_DRAFTER = re.compile(r" *+([\w.-]+): (.*)")
_AVERAGE = re.compile(r" *+(\d{1,6}(?:\.\d{0,9})?)(?!\S*[\d.])(?:.*?accept rate: *+([\d.]{1,12}))?")


class Drafted(NamedTuple):
    """What a line counts: drafts (None where it does not tell), tokens drafted, accepted, and rates by position."""

    drafts: int | None
    tokens: int
    accepted: int
    rates: tuple[float, ...] = ()


def counts_of_log(text: str, model: str | None = None) -> ServerCounts:
    """Read the lines of a server's log; `model` is one of several drafters."""
    if windows := [_read(_VLLM, rest, number) for number, _, rest in _marked(text, VLLM_MARK)]:
        return _of_windows([counts.groups() for counts in windows])
    if totals := [(number, _read(_VLLM_V0, rest, number)) for number, _, rest in _marked(text, VLLM_V0_MARK)]:
        return _of_v0_totals(*totals[-1])
    requests: list[Drafted] = []
    answered: list[int] = []
    prompts: list[int] = []
    for number, before, rest in _marked(text, REQUEST_MARK, EVAL_MARK):
        if REQUEST_MARK in before:
            requests.append(_request(_read(_REQUEST, rest, number), number))
        else:
            read = prompts if before.endswith("prompt" + EVAL_MARK) else answered
            read.append(int(_read(_EVAL, rest, number)[1]))
    drafters = _running_totals(text)
    if requests or drafters:
        tokens = sum(answered) if len(answered) == len(requests) and requests else None
        counts = _of_llama_log(requests, tokens, drafters, model)
        if tokens is None or len(prompts) != len(requests):
            return counts
        together = zip(requests, answered, prompts, strict=True)
        told = (RequestTotals(max(many - 1 - one.accepted, 0), one.accepted, prompt) for one, many, prompt in together)
        return replace(counts, totals=tuple(told))
    if answered:  # a llama.cpp that answers and has no draft
        return ServerCounts(LLAMA_CPP, "totals", 0, 0, 0, tokens=sum(answered), requests_done=len(answered))
    if averages := [_average(_read(_AVERAGE, rest, number), number) for number, _, rest in _marked(text, SGLANG_MARK)]:
        notes = ("SGLang's log shows averages: no counts, no positions, and so no interval.",)
        return ServerCounts(SGLANG, "averages", mean_length=sum(averages) / len(averages), notes=notes)
    raise ValueError("found no line of speculative decoding, expected metrics, answers or a log of such a server")


def _marked(text: str, *marks: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, text before (the mark with it) and after of every line with a mark."""
    for number, line in enumerate(text.splitlines(), start=1):
        for mark in marks:
            before, mark_found, after = line.partition(mark)
            if mark_found and len(line) > MAX_LINE:
                raise ValueError(f"line {number}: found {len(line):,} characters, expected at most {MAX_LINE:,}")
            if mark_found:
                yield number, before + mark_found, after


def _read(pattern: re.Pattern, text: str, number: int) -> re.Match:
    match = pattern.match(text)
    if match is None:
        raise ValueError(f"line {number}: found {text[:60]!r}, expected counts of speculative decoding")
    return match


def _average(match: re.Match, number: int) -> float:
    length, rate = float(match[1]), match[2]
    if not 1 <= length <= MAX_POSITIONS:
        raise ValueError(f"line {number}: accept len: found {length:g}, expected 1 or more tokens per step")
    if rate is not None and (rate.count(".") > 1 or rate == "." or float(rate) > 1):
        raise ValueError(f"line {number}: accept rate: found {rate}, expected a rate from 0 to 1")
    return length


def _rates(text: str) -> tuple[float, ...]:
    """Return the numbers of a list in text; none where one is no rate."""
    try:
        rates = tuple(float(rate) for rate in text.split(",") if rate.strip())
    except ValueError:
        return ()
    return rates if all(0 <= rate <= 1 for rate in rates) else ()


def _of_windows(windows: Sequence[tuple[str, ...]]) -> ServerCounts:
    drafts = drafted = 0
    positions: list[int] = []
    for accepted, tokens, listed in windows:
        rates = _rates(listed)
        if not rates:
            raise ValueError(f"found rates {listed[:40]!r}, expected numbers from 0 to 1")
        if int(accepted) > int(tokens):
            raise ValueError(f"found a window of {accepted} accepted of {tokens} draft tokens, expected no more")
        if positions and len(positions) != len(rates):
            raise ValueError(f"found {len(positions)} and {len(rates)} positions, expected one K in all windows")
        # The log tells drafts by nothing else: all positions' rates add up to accepted ÷ drafts.
        share = sum(rates)
        count = round(int(accepted) / share) if share else round(int(tokens) / len(rates))
        drafts, drafted = drafts + count, drafted + int(tokens)
        positions = positions or [0] * len(rates)
        positions = [have + round(rate * count) for have, rate in zip(positions, rates, strict=True)]
    if not drafts:
        raise ValueError("found windows without a draft, expected at least one")
    notes = (f"{len(windows)} windows of a log, summed: rates are rounded there, and times between windows missing.",)
    return ServerCounts(
        VLLM, "log windows", drafts, max(drafted, sum(positions)), sum(positions), tuple(positions), notes=notes
    )


def _of_v0_totals(number: int, match: re.Match) -> ServerCounts:
    longest, accepted, tokens, emitted = map(int, match.groups())
    if accepted > tokens:
        raise ValueError(f"line {number}: found {accepted} accepted of {tokens} draft tokens, expected no more")
    if not longest or not tokens or tokens % longest:
        raise ValueError(f"line {number}: found {tokens} draft tokens at K = {longest}, expected whole drafts")
    drafts = tokens // longest
    if not drafts <= emitted <= drafts + accepted:
        most = drafts + accepted
        raise ValueError(f"line {number}: found {emitted} emitted tokens, expected {drafts} to {most}")
    notes = (
        "Totals since the server's start, the log's last: nothing by position.",
        "Tokens that the draft got right behind a refused one count as accepted, but not in tokens per step.",
    )
    return ServerCounts(VLLM, "running totals", drafts, tokens, accepted, mean_length=emitted / drafts, notes=notes)


def _request(match: re.Match, number: int) -> Drafted:
    accepted, tokens, more = int(match[1]), int(match[2]), match[3]
    if accepted > tokens:
        raise ValueError(f"line {number}: found {accepted} accepted of {tokens} draft tokens, expected no more")
    mean = re.match(r"[\d.]{1,12}", _field(more, "mean len") or _field(more, "mean acceptance length"))
    rates = _listed(more, "acceptance rate per position", number)
    drafts = None
    if mean is not None and accepted and float(mean[0]) > 1:  # mean = 1 + accepted / drafts, rounded
        drafts = round(accepted / (float(mean[0]) - 1))
    full = tokens // len(rates) if rates and tokens % len(rates) == 0 else 0
    if drafts and full and abs(accepted / full - accepted / drafts) <= 0.01:
        drafts = full  # whole drafts tell the number exactly
    elif drafts is None and rates:
        drafts = -(-tokens // len(rates))
    return Drafted(drafts, tokens, accepted, rates)


def _running_totals(text: str) -> dict[str, Drafted]:
    """Return the total of each drafter; a counter that falls began again."""
    by_drafter: dict[str, list[Drafted]] = {}
    for number, _, rest in _marked(text, TOTALS_MARK):
        if "#gen drafts" not in rest:
            continue
        name, fields = _read(_DRAFTER, rest, number).groups()
        drafts, tokens, accepted = (
            int(_read(re.compile(r"\d{1,15}(?!\d)"), _field(fields, key), number)[0])
            for key in ("#gen drafts", "#gen tokens", "#acc tokens")
        )
        if accepted > tokens:
            raise ValueError(f"line {number}: found {accepted} accepted of {tokens} draft tokens, expected no more")
        runs = by_drafter.setdefault(name, [])
        if runs and (runs[-1].drafts or 0) <= drafts:
            runs.pop()
        runs.append(Drafted(drafts, tokens, accepted, _listed(fields, "#acc rate/pos", number)))
    return {name: total for name, runs in by_drafter.items() if (total := _summed(runs)).tokens}


def _field(text: str, name: str) -> str:
    return text.partition(f"{name} =")[2].lstrip(" ")


def _listed(text: str, name: str, number: int) -> tuple[float, ...]:
    listed = _field(text, name)
    inside = listed[1:].partition(")")[0]
    rates = _rates(inside)
    if listed and not rates:
        raise ValueError(f"line {number}: found rates {inside[:40]!r}, expected numbers from 0 to 1")
    return rates


def _summed(parts: Sequence[Drafted]) -> Drafted:
    """Return sums; rates only where each part has them, drafts only where each tells."""
    drafts = [part.drafts for part in parts if part.drafts is not None]
    total = sum(drafts) if len(drafts) == len(parts) else None
    rates: tuple[float, ...] = ()
    if total and len({len(part.rates) for part in parts}) == 1:  # of several K nothing is said by position
        of_place = zip(*(part.rates for part in parts), strict=True)
        rates = tuple(sum(map(mul, drafts, at_position)) / total for at_position in of_place)
    return Drafted(total, sum(part.tokens for part in parts), sum(part.accepted for part in parts), rates)


def _of_llama_log(
    requests: Sequence[Drafted], tokens: int | None, drafters: dict[str, Drafted], model: str | None
) -> ServerCounts:
    total, notes, source = _summed(requests), [], "totals"
    if len(drafters) > 1:
        if model not in drafters:
            listed = ", ".join(f"{name} ({each.drafts:,} drafts)" for name, each in drafters.items())[:200]
            raise ValueError(f"found drafters {listed}, expected one: say which as the model (--model)")
        total, tokens, source = drafters[model], None, "running totals"
        notes.append(f"Counts of {model} alone, one of {len(drafters)} drafters.")
    elif drafters:
        running = next(iter(drafters.values()))
        if running.tokens >= total.tokens:
            if requests and running.tokens > total.tokens:
                notes.append("The running totals count more than the log's requests: since the server's start.")
                tokens = None
            total, source = running, "running totals"
        else:
            notes.append("The running totals count less than the log's requests (of one slot alone?): left out.")
    positions = tuple(round(rate * (total.drafts or 0)) for rate in total.rates)
    accepted = total.accepted
    if positions:
        if abs(sum(positions) - accepted) > max(0.02 * accepted, len(positions)):
            raise ValueError(f"found rates of {sum(positions)} accepted tokens where {accepted} were counted")
        accepted = sum(positions)
        notes.append("Counts by position come of rates that the log rounds.")
    else:
        notes.append("llama.cpp's log shows totals of each request: nothing by position.")
    steps = (tokens or 0) - len(requests) - accepted
    mean = 1 + accepted / total.drafts if total.drafts else 1 + accepted / steps if steps > 0 else None
    if mean is None:
        notes.append("Neither mean lengths nor the answers' lengths are in the log: tokens per step are unknown.")
    return ServerCounts(
        LLAMA_CPP, source, total.drafts, max(total.tokens, accepted), accepted,
        positions, tokens=tokens, requests_done=len(requests) or None, mean_length=mean, notes=tuple(notes),
    )  # fmt: skip
