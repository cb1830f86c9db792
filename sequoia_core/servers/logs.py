"""What servers say of speculative decoding in their logs: windows (vLLM), requests (llama.cpp) or averages (SGLang).

llama.cpp's lines of requests come in three forms: totals alone, with the mean length, with rates by position too. Its
`statistics` lines are running totals of each drafter, so the last one counts, or the last before they begin again.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf

from ..files.gguf_header import LLAMA_CPP
from .counts import (
    MAX_LINE,
    MAX_POSITIONS,
    SGLANG,
    UNCENSORED,
    VLLM,
    RequestTotals,
    ServerCounts,
    Unrecognised,
    counts_of_one_k,
    notes_of_left_out,
)

_COUNTED = ("drafts", "draft_tokens", "accepted_tokens")
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
_DRAFTER = re.compile(r" *+([\w.-]{1,64}+): ((?s:.*))", re.ASCII)
_ALL_IN_ALL = re.compile("llama_(?:perf|print_timings)")  # of a context, not of a request
_AVERAGE = re.compile(r" *+(\d{1,6}+(?:\.\d{0,9}+)?+)(?=[\s,])")
_WHOLE = re.compile(r"\d{1,15}+(?=\D)")
_MEAN = re.compile(r"\d{1,6}+(?:\.\d{0,6}+)?+(?=\D)")


Found = list[tuple[str, ServerCounts | None]]  # mark and counts of each line with a mark; None where not readable


def counts_of_log(text: str, model: str | None = None, odd: Sequence[str] = ()) -> ServerCounts:
    """Read the lines of a server's log; `model` is one of several drafters, `odd` names lines left out before."""
    odd = list(odd)
    found = _read(text, odd)
    if windows := _of(found, VLLM_MARK):
        note = f"{len(windows)} windows of a log, summed: rates are rounded there, and times between windows missing."
        counts = counts_of_one_k(windows, "log windows", [note])
    elif llama := _llama_log(found, odd, model):
        counts = llama
    elif averages := _of(found, SGLANG_MARK):
        means = [each.mean_length or 1 for each in averages]
        note = f"SGLang's log shows averages, from {min(means):.2f} to {max(means):.2f}: no counts, so no interval."
        counts = counts_of_one_k(averages, "averages", [note])
    elif odd:
        raise ValueError(odd[0])
    else:
        raise Unrecognised("found no line of speculative decoding")
    return replace(counts, notes=(*counts.notes, *notes_of_left_out(odd)))


def _read(text: str, odd: list[str]) -> Found:
    found: Found = []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):  # a number at the end may be cut
        mark = next((mark for mark in _READERS if mark in line), None)
        if mark is None or _ALL_IN_ALL.search(line):
            continue
        counts = None
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
            counts = _READERS[mark](line.partition(mark)[2])
        except ValueError as error:
            odd.append(f"line {number}: {error}")
        found.append((mark, None if counts is None else replace(counts, source=f"line {number}")))
    return found


def _of(found: Found, wanted: str) -> list[ServerCounts]:
    return [counts for mark, counts in found if mark == wanted and counts is not None]


def _match(pattern: re.Pattern, text: str) -> re.Match:
    match = pattern.match(text)
    if match is None:
        raise ValueError(f"found {text[:60]!r}, expected counts of speculative decoding")
    return match


def _average(text: str) -> ServerCounts:
    length = float(_match(_AVERAGE, text)[1])
    if not 1 <= length <= MAX_POSITIONS:
        raise ValueError(f"accept len: found {length:g}, expected 1 or more tokens per step")
    return ServerCounts(SGLANG, "", mean_length=length)


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
    counts = ServerCounts(VLLM, "", drafts, int(drafted), int(accepted))
    positions = tuple(round(rate * drafts) for rate in rates)
    total = sum(positions)
    return replace(counts, draft_tokens=max(int(drafted), total), accepted_tokens=total, positions=positions)


def _drafts(accepted: int, drafted: int, rates: Sequence[float], mean: float | None = None) -> int | None:
    """Return the number of drafts, which rates by position or the mean length tell; None where neither does.

    The rates, or the mean less 1, are accepted ÷ drafts, rounded.
    """
    share, error = (sum(rates), RATE_ERROR * len(rates)) if mean is None else (mean - 1, MEAN_ERROR)
    if not rates and (mean is None or share <= error):
        return None
    fewest = ceil(drafted / (len(rates) or max(drafted, 1)))
    low = max(accepted / (share + error), fewest)
    high = accepted / (share - error) if share > error else inf
    if mean is not None:  # llama.cpp's drafts are never empty; vLLM's are where a grammar rules them out
        high = min(high, drafted)
    if low > high:
        shown = f"a mean length of {mean:g}" if mean is not None else f"rates that add up to {share:.3g}"
        raise ValueError(f"found {accepted:,} accepted of {drafted:,} draft tokens at {shown}, expected what fits")
    if share <= error or (low == fewest and rates and drafted % len(rates) == 0):
        return fewest  # whole drafts tell the number exactly
    return round(min(max(accepted / share, low), high))


def _llama_log(found: Found, odd: list[str], model: str | None) -> ServerCounts | None:
    """Return what llama.cpp's requests and its running totals count; None where there are none."""
    requests, drafters = _requests(found, odd), _running_totals(found, odd)
    if not requests and not drafters:
        return None
    notes: list[str] = []
    asked = ServerCounts(LLAMA_CPP, "totals")
    if requests:
        asked = counts_of_one_k(requests, "totals")
    counts = asked
    drafted = sum(each.draft_tokens or 0 for each in requests)
    if len(drafters) > 1:
        if model not in drafters:
            listed = ", ".join(f"{name} ({each.drafts:,} drafts)" for name, each in drafters.items())[:200]
            raise ValueError(f"found drafters {listed}, expected one: say which as the model (--model)")
        # of steps that another drafter served nothing is known
        counts = replace(drafters[model], steps=None, draft_sec=None, totals=asked.totals)
        notes.append(f"Counts of {model} alone, one of {len(drafters)} drafters.")
    elif drafters:
        (running,) = drafters.values()
        counts = replace(asked, drafter=running.drafter)
        if (running.draft_tokens or 0) < drafted:
            notes.append("The running totals count less than the log's requests (of one slot alone?): left out.")
        elif running.draft_tokens == asked.draft_tokens:
            # one call of the drafter may serve several requests side by side
            together = (running.steps or 0) < UNCENSORED * (asked.all_steps or 0)
            counts = replace(
                running, tokens=asked.tokens, requests_done=asked.requests_done, run_sec=asked.run_sec,
                totals=asked.totals, steps=None if together else running.steps, periods=asked.periods,
            )  # fmt: skip
        elif running.periods or drafted == (asked.draft_tokens or 0):  # not one total of several K
            counts = replace(running, totals=asked.totals)
            if requests:
                notes.append("The running totals count more than the log's requests: since the server's start.")
    if counts.positions:
        notes.append("Counts by position are computed from rates that the log rounds.")
    elif counts.drafts != 0:
        notes.append("llama.cpp's log shows totals of each request: nothing by position.")
    mean = counts.tokens_per_step
    if mean is None:
        notes.append("Neither mean lengths nor the answers' lengths are in the log: tokens per step are unknown.")
    return replace(counts, mean_length=mean, notes=(*counts.notes, *notes))


def _requests(found: Found, odd: list[str]) -> list[ServerCounts]:
    """Return the counts of each request; one without a line of its draft drafted nothing."""
    requests: list[ServerCounts] = []
    answer = prompt = None  # lines of its times: they come before that of its draft
    for mark, counts in [*found, (EVAL_MARK, None)]:
        if mark == TOTALS_MARK:
            continue
        request = counts if mark == REQUEST_MARK else answer
        if request is not None:
            try:
                requests.append(_answered(request, answer, prompt))
            except ValueError as error:
                odd.append(f"{request.source}: {error}")
            prompt = None
        prompt = counts if mark == PROMPT_MARK else prompt
        answer = counts if mark == EVAL_MARK else None
    odd += _odd_rates(requests)
    return requests


def _time(text: str) -> ServerCounts:
    """Return the counts of a request that drafts nothing."""
    milliseconds, tokens = _match(_EVAL, text).groups()
    return ServerCounts(
        LLAMA_CPP, "", 0, 0, 0, tokens=int(tokens), requests_done=1, run_sec=float(milliseconds) / 1000
    )  # fmt: skip


def _answered(counts: ServerCounts, answer: ServerCounts | None, prompt: ServerCounts | None) -> ServerCounts:
    """Add the length and the time of an answer, and the length of its prompt."""
    if answer is None:
        return counts
    accepted = counts.accepted_tokens or 0
    steps = (answer.tokens or 0) - 1 - accepted
    totals = RequestTotals(max(steps, 0), accepted, None if prompt is None else prompt.tokens)
    return replace(counts, tokens=answer.tokens, run_sec=answer.run_sec, totals=(totals,))


def _request(text: str) -> ServerCounts:
    accepted, drafted, more = _match(_REQUEST, text).groups()
    mean = _MEAN.match(_field(more, "mean len") or _field(more, "mean acceptance length"))
    rates = _listed(more, "acceptance rate per position")
    drafts = _drafts(int(accepted), int(drafted), rates, None if mean is None else float(mean[0]))
    return _by_position(ServerCounts(LLAMA_CPP, "", drafts, int(drafted), int(accepted), requests_done=1), rates)


def _running_totals(found: Found, odd: list[str]) -> dict[str, ServerCounts]:
    """Return the total of each drafter; a counter that falls began again."""
    by_drafter: dict[str, list[ServerCounts]] = {}
    for total in _of(found, TOTALS_MARK):
        runs = by_drafter.setdefault(total.drafter, [])
        if runs and all((getattr(runs[-1], name) or 0) <= (getattr(total, name) or 0) for name in _COUNTED):
            runs.pop()
        runs.append(total)
    totals = {}
    for name, runs in by_drafter.items():
        odd += _odd_rates(runs)
        note = f"The totals of {name} began again: the log has {len(runs)} runs of them, summed."
        totals[name] = counts_of_one_k(runs, "running totals", [note] * (len(runs) > 1))
    return {name: total for name, total in totals.items() if total.draft_tokens} or dict(list(totals.items())[:1])


def _total(text: str) -> ServerCounts | None:
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
        LLAMA_CPP, "", drafts, drafted, accepted, drafter=name, steps=steps,
        draft_sec=None if times is None else float(times[1]) / 1000,
    )  # fmt: skip
    return _by_position(counts, _listed(fields, "#acc rate/pos"))


def _by_position(counts: ServerCounts, rates: Sequence[float]) -> ServerCounts:
    """Add the counts by position; leave them out where they do not add up, as for drafts longer than the list."""
    if not rates or not counts.drafts:
        return counts
    positions = tuple(round(rate * counts.drafts) for rate in rates)
    accepted = counts.accepted_tokens or 0
    total = sum(positions)
    if abs(total - accepted) > max(0.02 * accepted, len(positions)):
        return replace(counts, notes=(f"its rates: found {total:,} accepted tokens, expected {accepted:,} as counted",))
    drafted = max(counts.draft_tokens or 0, total)
    try:
        return replace(counts, draft_tokens=drafted, accepted_tokens=total, positions=positions)
    except ValueError as error:
        return replace(counts, notes=(f"its rates: {error}",))


def _odd_rates(parts: Sequence[ServerCounts]) -> list[str]:
    return [f"{part.source}, {note}" for part in parts for note in part.notes]


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


_READERS: dict[str, Callable[[str], ServerCounts | None]] = {
    VLLM_MARK: _window, PROMPT_MARK: _time, EVAL_MARK: _time, REQUEST_MARK: _request, TOTALS_MARK: _total,
    SGLANG_MARK: _average,
}  # fmt: skip
