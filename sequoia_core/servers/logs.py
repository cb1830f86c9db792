"""What servers say of speculative decoding in their logs: windows (vLLM), requests (llama.cpp) or averages (SGLang).

llama.cpp's lines of requests come in three forms: totals alone, with the mean length, with rates by position too. Its
`statistics` lines are running totals of each drafter, so the last one counts, or the last before they begin again.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from math import ceil, inf
from typing import Any

from ..files.gguf_header import LLAMA_CPP
from .counts import (
    MAX_POSITIONS,
    SGLANG,
    UNCENSORED,
    VLLM,
    RequestTotals,
    ServerCounts,
    Unrecognised,
    counts_of_one_k,
    notes_of_left_out,
    summed,
)

MAX_LINE = 16_384  # characters of a line that counts
MAX_PERIODS = 1000  # of a log; more windows are added up
RATE_ERROR, MEAN_ERROR = 0.00051, 0.0051  # of rates with three decimals and means with two, in sums of floats
VLLM_MARK, SGLANG_MARK = "SpecDecoding metrics:", "accept len:"
PROMPT_MARK, EVAL_MARK, REQUEST_MARK, TOTALS_MARK = (
    "prompt eval time =", " eval time =", "draft acceptance", "statistics "
)  # fmt: skip
# Each begins behind its mark and tries no place twice, so that reading takes time linear in the line.
_VLLM = re.compile(
    r".*?Accepted: (\d{1,16}) tokens, Drafted: (\d{1,16}) tokens, "
    r"Per-position acceptance rate: ([\d., ]+?),? (?:Avg )?Draft acceptance"
)
_REQUEST = re.compile(r"(?: rate)? = *+[\d.]++ \( *+(\d{1,16}) accepted / *+(\d{1,16}) generated\)((?s:.*))")
_EVAL = re.compile(r" *+(\d{1,12}(?:\.\d{0,9})?) ms / ++(\d{1,16}) (?:tokens|runs)")
_DRAFTER = re.compile(r" *+([\w.-]+): ((?s:.*))")
_AVERAGE = re.compile(r" *+(\d{1,6}+(?:\.\d{0,9}+)?+)(?=[\s,])")
_WHOLE = re.compile(r"\d{1,15}+(?=\D)")
_MEAN = re.compile(r"\d{1,6}+(?:\.\d{0,6}+)?+(?=\D)")


class _Lines:
    """The lines of a log. Those that cannot be read are left out, unless no other line counts."""

    def __init__(self, text: str, odd: Sequence[str] = ()) -> None:
        self._lines = text.splitlines(keepends=True)  # a number at the end of a file may be cut
        self.odd = list(odd)

    def read(self, readers: dict[str, Callable[[str], Any]]) -> Iterator[tuple[int, str, Any]]:
        """Yield number, mark and what its reader makes of the text after it, of every line with a mark.

        The value is None for lines that cannot be read and that a reader leaves out.
        """
        for number, line in enumerate(self._lines, start=1):
            mark = next((mark for mark in readers if mark in line), None)
            if mark is None:
                continue
            try:
                if len(line) > MAX_LINE:
                    raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
                yield number, mark, readers[mark](line.partition(mark)[2])
            except ValueError as error:
                self.odd.append(f"line {number}: {error}")
                yield number, mark, None

    def counts(self, mark: str, reader: Callable[[str], ServerCounts]) -> list[tuple[int, ServerCounts]]:
        return [(number, counts) for number, _, counts in self.read({mark: reader}) if counts is not None]


def counts_of_log(text: str, model: str | None = None, odd: Sequence[str] = ()) -> ServerCounts:
    """Read the lines of a server's log; `model` is one of several drafters, `odd` names lines left out before."""
    lines = _Lines(text, odd)
    if windows := lines.counts(VLLM_MARK, _window):
        note = f"{len(windows)} windows of a log, summed: rates are rounded there, and times between windows missing."
        counts = counts_of_one_k([counts for _, counts in windows], "log windows", [note])
        counts = replace(counts, periods=_periods(windows))
    elif llama := _llama_log(lines, model):
        counts = llama
    elif averages := lines.counts(SGLANG_MARK, _average):
        counts = summed([counts for _, counts in averages], "averages")
        means = [each.mean_length or 1 for _, each in averages]
        notes = ["SGLang's log shows averages: no counts, no positions, and so no interval."]
        if min(means) < max(means):
            notes.append(f"The averages go from {min(means):.2f} to {max(means):.2f} tokens per step.")
        counts = replace(counts, notes=tuple(notes), periods=_periods(averages))
    elif lines.odd:
        raise ValueError(lines.odd[0])
    else:
        raise Unrecognised("found no line of speculative decoding")
    return replace(counts, notes=(*counts.notes, *notes_of_left_out(lines.odd)))


def _periods(windows: Sequence[tuple[int, ServerCounts]]) -> tuple[ServerCounts, ...]:
    """Return the windows of a log in their order, each of one K; nothing where there is only one."""
    if len(windows) == 1:
        return ()
    size = ceil(len(windows) / MAX_PERIODS)
    periods = []
    for _, group in groupby(windows, key=lambda window: len(window[1].positions)):
        run = list(group)
        for start in range(0, len(run), size):
            numbers, parts = zip(*run[start : start + size], strict=True)
            lines = f"line {numbers[0]}" if len(numbers) == 1 else f"lines {numbers[0]} to {numbers[-1]}"
            periods.append(summed(parts, lines))
    return tuple(periods)


def _match(pattern: re.Pattern, text: str) -> re.Match:
    match = pattern.match(text)
    if match is None:
        raise ValueError(f"found {text[:60]!r}, expected counts of speculative decoding")
    return match


def _average(text: str) -> ServerCounts:
    length = float(_match(_AVERAGE, text)[1])
    if not 1 <= length <= MAX_POSITIONS:
        raise ValueError(f"accept len: found {length:g}, expected 1 or more tokens per step")
    return ServerCounts(SGLANG, "averages", mean_length=length)


def _rates(listed: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(rate) for rate in listed.split(",") if rate.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"found rates {listed[:40]!r}, expected numbers from 0 to 1")
    return rates


def _window(text: str) -> ServerCounts:
    accepted, drafted, listed = _match(_VLLM, text).groups()
    rates = _rates(listed)
    drafts = _drafts(int(accepted), int(drafted), rates) or 0
    positions = tuple(round(rate * drafts) for rate in rates)
    return ServerCounts(VLLM, "log windows", drafts, max(int(drafted), sum(positions)), sum(positions), positions)


def _drafts(accepted: int, drafted: int, rates: Sequence[float], mean: float | None = None) -> int | None:
    """Return the number of drafts, which rates by position or the mean length tell; None where neither does.

    The rates, or the mean less 1, are accepted ÷ drafts, rounded.
    """
    if accepted > drafted:
        raise ValueError(f"found {accepted:,} accepted of {drafted:,} draft tokens, expected no more")
    share, error = (sum(rates), RATE_ERROR * len(rates)) if mean is None else (mean - 1, MEAN_ERROR)
    if not rates and (mean is None or share <= error):
        return None
    fewest = ceil(drafted / (len(rates) or max(drafted, 1)))
    low = max(accepted / (share + error), fewest)
    high = min(accepted / (share - error) if share > error else inf, drafted)
    if low > high:
        shown = f"a mean length of {mean:g}" if mean is not None else f"rates that add up to {share:.3g}"
        raise ValueError(f"found {accepted:,} accepted of {drafted:,} draft tokens at {shown}, expected what fits")
    if share <= error or (low == fewest and rates and drafted % len(rates) == 0):
        return fewest  # whole drafts tell the number exactly
    return round(min(max(accepted / share, low), high))


def _llama_log(lines: _Lines, model: str | None) -> ServerCounts | None:
    """Return what llama.cpp's requests and its running totals count; None where there are none."""
    requests = _requests(lines)
    drafters = _running_totals(lines)
    if not requests and not drafters:
        return None
    notes: list[str] = []
    counts = counts_of_one_k(requests, "totals") if requests else next(iter(drafters.values()))
    drafted = sum(each.draft_tokens or 0 for each in requests)
    if len(drafters) > 1:
        if model not in drafters:
            listed = ", ".join(f"{name} ({each.drafts:,} drafts)" for name, each in drafters.items())[:200]
            raise ValueError(f"found drafters {listed}, expected one: say which as the model (--model)")
        # of steps that another drafter served nothing is known
        counts = replace(drafters[model], steps=None, draft_sec=None, totals=counts.totals)
        notes.append(f"Counts of {model} alone, one of {len(drafters)} drafters.")
    elif drafters:
        (running,) = drafters.values()
        if (running.draft_tokens or 0) < drafted:
            notes.append("The running totals count less than the log's requests (of one slot alone?): left out.")
            counts = replace(counts, drafter=running.drafter)
        elif len(running.periods) >= len(counts.periods):
            counts, requested = replace(running, totals=counts.totals), counts
            if running.draft_tokens == requested.draft_tokens:
                # one call of the drafter may serve several requests side by side
                fewest = UNCENSORED * (requested.all_steps or 0)
                counts = replace(
                    counts, tokens=requested.tokens, requests_done=requested.requests_done, run_sec=requested.run_sec,
                    steps=running.steps if running.steps and running.steps >= fewest else None,
                )  # fmt: skip
            elif requests:
                notes.append("The running totals count more than the log's requests: since the server's start.")
    if not counts.positions and counts.drafts != 0:
        notes.append("llama.cpp's log shows totals of each request: nothing by position.")
    elif counts.positions:
        notes.append("Counts by position come of rates that the log rounds.")
    mean = counts.tokens_per_step
    if mean is None:
        notes.append("Neither mean lengths nor the answers' lengths are in the log: tokens per step are unknown.")
    return replace(counts, mean_length=mean, notes=(*counts.notes, *notes))


def _requests(lines: _Lines) -> list[ServerCounts]:
    """Return the counts of each request; one without a line of its draft drafted nothing."""
    nothing = ServerCounts(LLAMA_CPP, "totals", 0, 0, 0, requests_done=1)
    requests: list[ServerCounts] = []
    prompt = None
    answer: tuple[float, int] | None = None  # seconds and tokens of an answer, whose draft may follow
    ends = [(0, EVAL_MARK, None)]
    for number, mark, found in chain(lines.read({PROMPT_MARK: _time, EVAL_MARK: _time, REQUEST_MARK: _request}), ends):
        if mark != REQUEST_MARK and answer is not None:
            requests.append(_with_answer(nothing, answer, prompt))
            prompt = None
        if mark == PROMPT_MARK:
            prompt = None if found is None else found[1]
        elif mark == REQUEST_MARK and found is not None:
            try:
                counts = _with_answer(found[0], answer, prompt)
                requests.append(_by_position(lines, number, counts, found[1]))
            except ValueError as error:
                lines.odd.append(f"line {number}: {error}")
            prompt = None
        answer = found if mark == EVAL_MARK else None
    return requests


def _time(text: str) -> tuple[float, int]:
    milliseconds, tokens = _match(_EVAL, text).groups()
    return float(milliseconds) / 1000, int(tokens)


def _with_answer(counts: ServerCounts, answer: tuple[float, int] | None, prompt: int | None) -> ServerCounts:
    if answer is None:
        return counts
    seconds, tokens = answer
    accepted = counts.accepted_tokens or 0
    totals = RequestTotals(max(tokens - 1 - accepted, 0), accepted, prompt)
    return replace(counts, tokens=tokens, run_sec=seconds, totals=(totals,))


def _request(text: str) -> tuple[ServerCounts, tuple[float, ...]]:
    accepted, drafted, more = _match(_REQUEST, text).groups()
    mean = _MEAN.match(_field(more, "mean len") or _field(more, "mean acceptance length"))
    rates = _listed(more, "acceptance rate per position")
    drafts = _drafts(int(accepted), int(drafted), rates, None if mean is None else float(mean[0]))
    return ServerCounts(LLAMA_CPP, "totals", drafts, int(drafted), int(accepted), requests_done=1), rates


def _running_totals(lines: _Lines) -> dict[str, ServerCounts]:
    """Return the total of each drafter; a counter that falls began again."""
    by_drafter: dict[str, list[tuple[int, ServerCounts, tuple[float, ...]]]] = {}
    for number, _, found in lines.read({TOTALS_MARK: _total}):
        if found is None:
            continue
        runs = by_drafter.setdefault(found[0].drafter, [])
        if runs and (runs[-1][1].drafts or 0) <= (found[0].drafts or 0):
            runs.pop()
        runs.append((number, *found))
    totals = {
        name: counts_of_one_k([_by_position(lines, *run) for run in runs], "running totals")
        for name, runs in by_drafter.items()
    }
    return {name: total for name, total in totals.items() if total.draft_tokens}


def _total(text: str) -> tuple[ServerCounts, tuple[float, ...]] | None:
    if "#gen drafts" not in text:
        return None
    name, fields = _match(_DRAFTER, text).groups()
    drafts, drafted, accepted = (
        int(_match(_WHOLE, _field(fields, key))[0]) for key in ("#gen drafts", "#gen tokens", "#acc tokens")
    )
    calls = re.match(r"\d{1,15} +(\d{1,15}) ", _field(fields, "#calls(b,g,a)"))
    # where one call serves several requests, calls are no steps
    steps = int(calls[1]) if calls is not None and int(calls[1]) >= drafts else None
    times = re.match(r"[\d.]{1,20}, *(\d{1,15}(?:\.\d{0,9})?),", _field(fields, "dur(b,g,a)"))
    counts = ServerCounts(
        LLAMA_CPP, "running totals", drafts, drafted, accepted, drafter=name, steps=steps,
        draft_sec=None if times is None else float(times[1]) / 1000,
    )  # fmt: skip
    return counts, _listed(fields, "#acc rate/pos")


def _by_position(lines: _Lines, number: int, counts: ServerCounts, rates: Sequence[float]) -> ServerCounts:
    """Add the counts by position; leave them out where they do not add up, as for drafts longer than the list."""
    if not rates or not counts.drafts:
        return counts
    positions = tuple(round(rate * counts.drafts) for rate in rates)
    accepted = counts.accepted_tokens or 0
    total = sum(positions)
    if abs(total - accepted) > max(0.02 * accepted, len(positions)):
        lines.odd.append(f"line {number}, its rates: found {total:,} accepted tokens, expected {accepted:,} as counted")
        return counts
    drafted = max(counts.draft_tokens or 0, total)
    return replace(counts, draft_tokens=drafted, accepted_tokens=total, positions=positions)


def _field(text: str, name: str) -> str:
    return text.partition(f"{name} =")[2].lstrip(" ")


def _listed(text: str, name: str) -> tuple[float, ...]:
    listed = _field(text, name)
    if not listed:
        return ()
    inside, end, _ = listed[1:].partition(")")
    if not end:
        raise ValueError(f"found rates {listed[:40]!r}, expected a list in brackets")
    return _rates(inside)
