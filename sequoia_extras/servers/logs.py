"""Parse server logs: windows (vLLM), requests and running totals (llama.cpp), or averages (SGLang).

llama.cpp reports requests in three forms: totals only, totals with the mean length, or both with per-position rates.
Its `statistics` lines are running totals per drafter, so only the last one before each reset is used.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf

from sequoia_core.planning.profile import LLAMA_CPP

from .counts import (
    FULL_DRAFTS,
    MAX_LINE,
    MAX_POSITIONS,
    SGLANG,
    VLLM,
    RequestTotals,
    ServerCounts,
    UnrecognisedError,
    merge_periods,
    skipped_line_notes,
)

_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
RATE_ERROR = 0.00051  # rounding error of a rate with three decimals, and of float sums
MEAN_ERROR = 0.0051  # rounding error of a mean with two decimals
VLLM_MARK = "SpecDecoding metrics:"
SGLANG_MARK = "accept len:"
PROMPT_MARK = "prompt eval time ="
ANSWER_MARK = " eval time ="
REQUEST_MARK = "draft acceptance"
TOTALS_MARK = "statistics "
# Each pattern starts right after its mark and does not backtrack, so parsing is linear in the line's length.
_VLLM = re.compile(
    r".*?Accepted: (\d{1,16}) tokens, Drafted: (\d{1,16}) tokens, "
    r"Per-position acceptance rate: ([\d., ]+?),? (?:Avg )?Draft acceptance"
)
_REQUEST = re.compile(r"(?: rate)? = *+[\d.]++ \( *+(\d{1,16}) accepted / *+(\d{1,16}) generated\)((?s:.*))")
_TIME = re.compile(r" *+(\d{1,12}(?:\.\d{0,9})?) ms / ++(\d{1,16}) (?:tokens|runs)")
_DRAFTER = re.compile(r" *+([\w.-]{1,64}+): ((?s:.*))", re.ASCII)
_CONTEXT_TOTAL = re.compile("llama_(?:perf|print_timings)")  # times of a context, not of a request
_AVERAGE = re.compile(r" *+(\d{1,6}+(?:\.\d{0,9}+)?+)(?=[\s,])")
_WHOLE = re.compile(r"\d{1,15}+(?=\D)")
_MEAN = re.compile(r"\d{1,6}+(?:\.\d{0,6}+)?+(?=\D)")

MarkedCounts = list[tuple[str, ServerCounts | None]]  # mark and counts of each marked line; None if unreadable


def parse_server_log(text: str, model: str | None = None, skipped: Sequence[str] = ()) -> ServerCounts:
    """Parse a server's log; `model` selects a drafter, and `skipped` lists the reasons for lines skipped before."""
    skipped = list(skipped)
    lines = _parse_lines(text, skipped)
    if windows := _with_mark(lines, VLLM_MARK):
        note = f"Sum of {len(windows)} log windows: their rates are rounded, and the gaps between windows are missing."
        counts = merge_periods(windows, "log windows", [note])
    elif llama := _merge_llama_counts(lines, skipped, model):
        counts = llama
    elif averages := _with_mark(lines, SGLANG_MARK):
        means = [part.mean_length or 1 for part in averages]
        note = f"SGLang's log contains only averages ({min(means):.2f} to {max(means):.2f}), so there is no interval."
        counts = merge_periods(averages, "averages", [note])
    elif skipped:
        raise ValueError(skipped[0])
    else:
        raise UnrecognisedError("found no line about speculative decoding")
    return replace(counts, notes=(*counts.notes, *skipped_line_notes(skipped)))


def _parse_lines(text: str, skipped: list[str]) -> MarkedCounts:
    lines: MarkedCounts = []
    # Line ends are kept: they show whether a number at the end of the text may be truncated.
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        mark = next((mark for mark in LINE_PARSERS if mark in line), None)
        if mark is None or _CONTEXT_TOTAL.search(line):
            continue
        counts = None
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
            counts = LINE_PARSERS[mark](line.partition(mark)[2])
        except ValueError as error:
            skipped.append(f"line {number}: {error}")
        lines.append((mark, None if counts is None else replace(counts, source=f"line {number}")))
    return lines


def _with_mark(lines: MarkedCounts, wanted: str) -> list[ServerCounts]:
    return [counts for mark, counts in lines if mark == wanted and counts is not None]


def _match(pattern: re.Pattern, text: str) -> re.Match:
    match = pattern.match(text)
    if match is None:
        raise ValueError(f"found {text[:60]!r}, expected speculative decoding counts")
    return match


def _parse_sglang_average(text: str) -> ServerCounts:
    length = float(_match(_AVERAGE, text)[1])
    if not 1 <= length <= MAX_POSITIONS:
        raise ValueError(f"accept len: found {length:g}, expected 1 or more tokens per step")
    return ServerCounts(SGLANG, "", mean_length=length)


def _parse_rates(listed: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(rate) for rate in listed.split(",") if rate.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"found rates {listed[:40]!r}, expected numbers from 0 to 1")
    return rates


def _parse_vllm_window(text: str) -> ServerCounts:
    accepted, drafted, listed = _match(_VLLM, text).groups()
    rates = _parse_rates(listed)
    drafts = _infer_drafts(int(accepted), int(drafted), rates) or 0
    counts = ServerCounts(VLLM, "", drafts, int(drafted), int(accepted))
    positions = tuple(round(rate * drafts) for rate in rates)
    total = sum(positions)
    return replace(counts, draft_tokens=max(int(drafted), total), accepted_tokens=total, positions=positions)


def _infer_drafts(accepted: int, drafted: int, rates: Sequence[float], mean: float | None = None) -> int | None:
    """Infer the number of drafts from per-position rates or from the mean length; None if neither determines it.

    Up to rounding, accepted ÷ drafts equals the sum of the rates, and the mean minus 1.
    """
    if mean is None:
        share = sum(rates)
        error = RATE_ERROR * len(rates)
    else:
        share = mean - 1
        error = MEAN_ERROR
    if not rates and (mean is None or share <= error):
        return None
    fewest = ceil(drafted / (len(rates) or max(drafted, 1)))
    low = max(accepted / (share + error), fewest)
    high = accepted / (share - error) if share > error else inf
    if mean is not None:  # llama.cpp's drafts are never empty; vLLM's are if a grammar rules them out
        high = min(high, drafted)
    if low > high:
        shown = f"a mean length of {mean:g}" if mean is not None else f"rates that add up to {share:.3g}"
        raise ValueError(f"found {accepted:,} accepted of {drafted:,} draft tokens at {shown}, which is inconsistent")
    if share <= error or (low == fewest and rates and drafted % len(rates) == 0):
        return fewest  # exact, because all drafts are full-length
    return round(min(max(accepted / share, low), high))


def _merge_llama_counts(lines: MarkedCounts, skipped: list[str], model: str | None) -> ServerCounts | None:
    """Combine the requests and the running totals of a llama.cpp log; None if it contains neither."""
    requests = _collect_requests(lines, skipped)
    drafters = _collect_running_totals(lines, skipped)
    if not requests and not drafters:
        return None
    notes: list[str] = []
    asked = merge_periods(requests, "totals") if requests else ServerCounts(LLAMA_CPP, "totals")
    if len(drafters) > 1:
        if model not in drafters:
            listed = ", ".join(f"{name} ({total.drafts:,} drafts)" for name, total in drafters.items())[:200]
            raise ValueError(f"found drafters {listed}, expected one: select it as the model (--model)")
        # The steps served by other drafters are unknown.
        counts = replace(drafters[model], steps=None, draft_sec=None, totals=asked.totals)
        notes.append(f"Only {model}, one of {len(drafters)} drafters, is counted.")
    elif drafters:
        (running,) = drafters.values()
        drafted = sum(request.draft_tokens or 0 for request in requests)
        counts = _add_running_total(asked, running, drafted, notes)
    else:
        counts = asked
    if counts.positions:
        notes.append("Per-position counts are computed from the log's rounded rates.")
    elif counts.drafts != 0:
        notes.append("llama.cpp's log contains only totals for each request, without per-position counts.")
    mean = counts.tokens_per_step
    if mean is None:
        notes.append("The log contains neither mean lengths nor answer lengths, so tokens per step are unknown.")
    return replace(counts, mean_length=mean, notes=(*counts.notes, *notes))


def _add_running_total(asked: ServerCounts, running: ServerCounts, drafted: int, notes: list[str]) -> ServerCounts:
    """Combine a drafter's running total with the log's requests, which drafted `drafted` tokens in total."""
    if (running.draft_tokens or 0) < drafted:
        notes.append("The running totals are ignored: they are lower than the sum over requests (only one slot?).")
    elif running.draft_tokens == asked.draft_tokens:
        # One drafter call may serve several concurrent requests; in that case calls are not steps.
        shared = (running.steps or 0) < FULL_DRAFTS * (asked.all_steps or 0)
        return replace(
            running,
            tokens=asked.tokens,
            requests_done=asked.requests_done,
            run_sec=asked.run_sec,
            totals=asked.totals,
            steps=None if shared else running.steps,
            periods=asked.periods,
        )
    elif running.periods or drafted == (asked.draft_tokens or 0):  # the total does not mix several K
        if asked.requests_done:
            notes.append("The running totals exceed the log's requests: they cover the time since the server's start.")
        return replace(running, totals=asked.totals)
    return replace(asked, drafter=running.drafter)


def _collect_requests(lines: MarkedCounts, skipped: list[str]) -> list[ServerCounts]:
    """Return the counts of each request; one without a report of its draft counts as having drafted nothing."""
    requests: list[ServerCounts] = []
    answer = prompt = None  # a request's times are logged before its draft
    for mark, counts in [*lines, (ANSWER_MARK, None)]:
        if mark == TOTALS_MARK:
            continue
        request = counts if mark == REQUEST_MARK else answer
        if request is not None:
            try:
                requests.append(_add_answer(request, answer, prompt))
            except ValueError as error:
                skipped.append(f"{request.source}: {error}")
            prompt = None
        prompt = counts if mark == PROMPT_MARK else prompt
        answer = counts if mark == ANSWER_MARK else None
    skipped += _inconsistent_rates(requests)
    return requests


def _parse_llama_time(text: str) -> ServerCounts:
    """Return a request's length and time as the counts of a request without drafts."""
    milliseconds, tokens = _match(_TIME, text).groups()
    seconds = float(milliseconds) / 1000
    return ServerCounts(LLAMA_CPP, "", 0, 0, 0, tokens=int(tokens), requests_done=1, run_sec=seconds)


def _add_answer(counts: ServerCounts, answer: ServerCounts | None, prompt: ServerCounts | None) -> ServerCounts:
    """Add an answer's length and time, and its prompt's length, to the counts of a request."""
    if answer is None:
        return counts
    accepted = counts.accepted_tokens or 0
    steps = (answer.tokens or 0) - 1 - accepted
    totals = RequestTotals(max(steps, 0), accepted, None if prompt is None else prompt.tokens)
    return replace(counts, tokens=answer.tokens, run_sec=answer.run_sec, totals=(totals,))


def _parse_llama_request(text: str) -> ServerCounts:
    accepted, drafted, more = _match(_REQUEST, text).groups()
    mean = _MEAN.match(_field(more, "mean len") or _field(more, "mean acceptance length"))
    rates = _listed_rates(more, "acceptance rate per position")
    drafts = _infer_drafts(int(accepted), int(drafted), rates, None if mean is None else float(mean[0]))
    return add_positions(ServerCounts(LLAMA_CPP, "", drafts, int(drafted), int(accepted), requests_done=1), rates)


def _collect_running_totals(lines: MarkedCounts, skipped: list[str]) -> dict[str, ServerCounts]:
    """Return the total for each drafter; a counter that decreases was reset."""
    by_drafter: dict[str, list[ServerCounts]] = {}
    for total in _with_mark(lines, TOTALS_MARK):
        runs = by_drafter.setdefault(total.drafter, [])
        if runs and all((getattr(runs[-1], name) or 0) <= (getattr(total, name) or 0) for name in _COUNTERS):
            runs.pop()
        runs.append(total)
    totals = {}
    for name, runs in by_drafter.items():
        skipped += _inconsistent_rates(runs)
        notes = []
        if len(runs) > 1:
            notes.append(f"The totals of {name} were reset; the {len(runs)} runs in the log are summed.")
        totals[name] = merge_periods(runs, "running totals", notes)
    return {name: total for name, total in totals.items() if total.draft_tokens} or dict(list(totals.items())[:1])


def _parse_llama_total(text: str) -> ServerCounts | None:
    if "#gen drafts" not in text:
        return None
    name, fields = _match(_DRAFTER, text).groups()
    drafts, drafted, accepted = (
        int(_match(_WHOLE, _field(fields, key))[0]) for key in ("#gen drafts", "#gen tokens", "#acc tokens")
    )
    calls = re.match(r"\d{1,15} +(\d{1,15}) ", _field(fields, "#calls(b,g,a)"))
    # If one call serves several requests, calls are not steps.
    steps = int(calls[1]) if calls is not None and int(calls[1]) >= drafts else None
    times = re.match(r"[\d.]{1,20}, *(\d{1,15}(?:\.\d{0,9})?),", _field(fields, "dur(b,g,a)"))
    draft_sec = None if times is None else float(times[1]) / 1000
    counts = ServerCounts(LLAMA_CPP, "", drafts, drafted, accepted, drafter=name, steps=steps, draft_sec=draft_sec)
    return add_positions(counts, _listed_rates(fields, "#acc rate/pos"))


def add_positions(counts: ServerCounts, rates: Sequence[float]) -> ServerCounts:
    """Add per-position counts unless they are inconsistent, as for drafts longer than the list of rates."""
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


def _inconsistent_rates(parts: Sequence[ServerCounts]) -> list[str]:
    return [f"{part.source}, {note}" for part in parts for note in part.notes]


def _field(text: str, name: str) -> str:
    return text.partition(f"{name} =")[2].lstrip(" ")


def _listed_rates(text: str, name: str) -> tuple[float, ...]:
    listed = _field(text, name)
    if not listed:
        return ()
    inside, end, _ = listed[1:].partition(")")
    if not end:
        raise ValueError(f"found rates {listed[:40]!r}, expected a list in parentheses")
    return _parse_rates(inside)


# The first mark found in a line selects its parser, so a prompt's mark must come before an answer's.
LINE_PARSERS: dict[str, Callable[[str], ServerCounts | None]] = {
    VLLM_MARK: _parse_vllm_window,
    PROMPT_MARK: _parse_llama_time,
    ANSWER_MARK: _parse_llama_time,
    REQUEST_MARK: _parse_llama_request,
    TOTALS_MARK: _parse_llama_total,
    SGLANG_MARK: _parse_sglang_average,
}
