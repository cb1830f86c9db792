"""Servers' counts outside metrics and logs: answers as JSON, `acceptance.csv`, rates by position."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from ..files.gguf_header import LLAMA_CPP
from ..files.safe_files import read_json
from .counts import (
    MAX_COUNT,
    MAX_POSITIONS,
    RATES,
    VLLM,
    RequestTotals,
    ServerCounts,
    ServerRequest,
    counts_of_survival,
)

MAX_REQUESTS = 10_000  # each is in every resample: 80 MB
MAX_STEPS = 5_000_000  # of all requests
MIN_LOOP_CHARS = 64  # characters, below which a repeated text says little
EXPECTED_ANSWERS = (
    "answers of vLLM with metrics.speculative_decoding (--per-request-spec-decode-metrics detailed), or of llama.cpp's "
    "server with timings"
)


def counts_of_answers(data: bytes) -> ServerCounts:
    """Read JSON: one answer, a list of answers, or one answer on each line; whole answers or the part that counts."""
    rows = _rows(data)
    parts = [part for row in rows for part in _parts(row)]
    if not parts:  # answers of a llama.cpp without a draft
        parts = [part for row in rows for part in _parts(row, "predicted_n")]
    engines = {engine for engine, _ in parts}
    if len(engines) != 1:
        mixed = " and ".join(sorted(engines)) or f"{len(rows)} objects without counts"
        raise ValueError(f"found {mixed}, expected {EXPECTED_ANSWERS}")
    if len(parts) > MAX_REQUESTS:
        raise ValueError(f"found {len(parts):,} requests, expected at most {MAX_REQUESTS:,}")
    answers = [fields for _, fields in parts]
    left_out = len(rows) - len(parts)
    notes = [f"{left_out} answers without counts were left out."] if left_out > 0 else []
    return (_of_vllm if engines == {VLLM} else _of_timings)(answers, notes)


def _rows(data: bytes) -> list[Any]:
    try:
        whole = read_json(data)
    except ValueError as error:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[1].lstrip().startswith(b"{"):
            raise
        if len(lines) > MAX_REQUESTS:
            raise ValueError(f"found {len(lines):,} lines, expected at most {MAX_REQUESTS:,}") from error
        whole = [read_json(line) for line in lines]
    return whole if isinstance(whole, list) else [whole]


def _parts(row: Any, timed: str = "draft_n") -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the parts of an answer that count: engine -> fields, with facts of the request."""
    if not isinstance(row, dict):
        return
    row = row["response"] if isinstance(row.get("response"), dict) else row
    metrics, usage = row.get("metrics"), row.get("usage")
    fields = metrics.get("speculative_decoding") if isinstance(metrics, dict) else row
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else row.get("completion_tokens")
    prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else row.get("tokens_evaluated")
    about = {"model": row.get("model", ""), "prompt_tokens": prompt, "looped": _looped(row)}
    if isinstance(fields, dict) and "num_spec_steps" in fields:
        yield VLLM, fields | {"completion_tokens": tokens} | about
    timings = row.get("timings", row)
    if isinstance(timings, dict) and timed in timings:
        yield LLAMA_CPP, timings | about


def _looped(row: dict[str, Any]) -> bool | None:
    """Return whether an answer's last half, at least, is one text of up to 200 characters again and again."""
    choices = row.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else row
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text", row.get("content"))
    if not isinstance(text, str) or not text:
        return None
    half = text[-max(len(text) // 2, MIN_LOOP_CHARS) :]
    return len(half) >= MIN_LOOP_CHARS and any(
        half[period:] == half[:-period] for period in range(1, len(half) // 4 + 1)[:200]
    )


def _of_vllm(answers: Sequence[dict[str, Any]], notes: list[str]) -> ServerCounts:
    requests, totals, lengths = [], [], set()
    ordered = all(isinstance(fields.get("per_step_accepted"), list) for fields in answers)
    steps = 0
    for number, fields in enumerate(answers, start=1):
        try:
            longest = _whole(fields, "num_spec_tokens", most=MAX_POSITIONS)
            if ordered:
                accepted, drafted = _whole_list(fields, "per_step_accepted"), _whole_list(fields, "per_step_drafted")
            else:
                bins = _whole_list(fields, "acceptance_histogram")
                if sum(bins) > MAX_STEPS:
                    raise ValueError(f"acceptance_histogram: found {sum(bins):,} steps, expected fewer")
                accepted = [taken for taken, count in enumerate(bins) for _ in range(count)]
                drafted = [longest] * len(accepted)
            steps += len(accepted)
            if steps > MAX_STEPS:
                raise ValueError(f"found more than {MAX_STEPS:,} steps, expected fewer requests")
            _check_steps(accepted, drafted, longest, _whole(fields, "num_spec_steps"))
            tokens = fields["completion_tokens"]
            after_first = None if tokens is None else _whole(fields, "completion_tokens") - 1
        except ValueError as error:
            raise ValueError(f"request {number}: {error}") from error
        requests.append(ServerRequest(tuple(accepted), tuple(drafted), after_first))
        totals.append(_totals(fields, len(accepted), sum(accepted)))
        lengths.add(longest)
    if len(lengths) > 1:
        raise ValueError(f"found num_spec_tokens {sorted(lengths)}, expected one setting in all requests")
    longest = lengths.pop()
    if not longest:
        raise ValueError("found num_spec_tokens 0, expected 1 or more")
    if not ordered:
        notes.append("Histograms without the order of steps: nothing can be replayed.")
    taken = [step for request in requests for step in request.accepted]
    drafted_in_all = sum(_whole(fields, "num_draft_tokens") for fields in answers)
    lengths_known = all(request.tokens is not None for request in requests)
    return ServerCounts(
        VLLM, "records by step" if ordered else "records by request", len(taken), drafted_in_all,
        sum(taken), tuple(sum(step >= position for step in taken) for position in range(1, longest + 1)),
        tokens=sum((request.tokens or 0) + 1 for request in requests) if lengths_known else None,
        requests_done=len(requests), requests=tuple(requests), ordered=ordered,
        model=_model(answers), notes=tuple(notes), totals=tuple(totals),
    )  # fmt: skip


def _totals(fields: dict[str, Any], steps: int, accepted: int) -> RequestTotals:
    prompt = fields["prompt_tokens"]
    known = type(prompt) is int and 0 <= prompt <= MAX_COUNT
    return RequestTotals(max(steps, 0), accepted, prompt if known else None, fields["looped"])


def _check_steps(accepted: Sequence[int], drafted: Sequence[int], longest: int, steps: int) -> None:
    if len(accepted) != len(drafted):
        raise ValueError(f"found {len(accepted)} steps accepted and {len(drafted)} drafted, expected as many of each")
    if len(accepted) != steps:
        raise ValueError(f"num_spec_steps: found {steps}, expected {len(accepted)}: as many as there are steps")
    for step, (taken, given) in enumerate(zip(accepted, drafted, strict=True), start=1):
        if not taken <= given <= longest:
            raise ValueError(f"step {step}: found {taken} accepted of {given}, expected no more than {longest} drafted")


def _of_timings(answers: Sequence[dict[str, Any]], notes: list[str]) -> ServerCounts:
    drafted = accepted = tokens = 0
    totals = []
    for number, fields in enumerate(answers, start=1):
        try:
            fields = {"draft_n": 0, "draft_n_accepted": 0} | fields
            counted = [_whole(fields, name) for name in ("predicted_n", "draft_n", "draft_n_accepted")]
        except ValueError as error:
            raise ValueError(f"request {number}: {error}") from error
        tokens, drafted, accepted = tokens + counted[0], drafted + counted[1], accepted + counted[2]
        totals.append(_totals(fields, counted[0] - 1 - counted[2], counted[2]))
    steps = tokens - len(answers) - accepted
    if not drafted and not accepted and tokens:
        return ServerCounts(
            LLAMA_CPP, "totals", 0, 0, 0, tokens=tokens, requests_done=len(answers), model=_model(answers),
            notes=tuple(notes), totals=tuple(totals),
        )  # fmt: skip
    if steps < 1:
        raise ValueError(
            f"found {tokens} tokens, {drafted} drafted, {accepted} accepted, expected answers that were speculated"
        )
    notes.append("llama.cpp's timings are totals: tokens per step of the present setting, nothing by position.")
    return ServerCounts(
        LLAMA_CPP, "totals", None, drafted, accepted, tokens=tokens, requests_done=len(answers),
        mean_length=1 + accepted / steps, model=_model(answers), notes=tuple(notes), totals=tuple(totals),
    )  # fmt: skip


def counts_of_table(text: str) -> ServerCounts:
    """Read `acceptance.csv` of vLLM's speculators: a row for each subset, with drafts and rates by position."""
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [f"acceptance_at_pos_{position}" for position in range(MAX_POSITIONS)]
    header = rows[0].keys() if rows else ()
    names = [name for name in names if name in header]
    if not names or "num_drafts" not in header:
        raise ValueError("found another table, expected columns num_drafts, acceptance_at_pos_0, …")
    totals = dict.fromkeys(("num_drafts", "num_draft_tokens"), 0)
    positions = [0] * len(names)
    for number, row in enumerate(rows, start=2):
        try:
            numbers = {name: float(row[name] or "nan") for name in (*totals, *names) if name in row}
        except (TypeError, ValueError):
            numbers = {}
        rates = [numbers.get(name, math.nan) for name in names]
        drafts = numbers.get("num_drafts", math.nan)
        drafted = numbers.get("num_draft_tokens", drafts * len(names))
        if not all(0 <= rate <= 1 for rate in rates) or not 0 <= drafts <= MAX_COUNT or not 0 <= drafted <= MAX_COUNT:
            raise ValueError(f"line {number}: found no row of counts and rates from 0 to 1, expected one")
        totals["num_drafts"] += round(drafts)
        totals["num_draft_tokens"] += round(drafted)
        positions = [count + round(rate * drafts) for count, rate in zip(positions, rates, strict=True)]
    if not totals["num_drafts"]:
        raise ValueError("found no drafts counted, expected at least one")
    notes = [f"{len(rows)} subsets, summed."] if len(rows) > 1 else []
    return ServerCounts(
        VLLM, "acceptance.csv", totals["num_drafts"], totals["num_draft_tokens"], sum(positions), tuple(positions),
        notes=tuple(notes),
    )  # fmt: skip


def counts_of_rates(values: Sequence[float], rates: str | None = None, *, engine: str = "unknown") -> ServerCounts:
    """Return published rates by position as counts, without an interval.

    `rates` is one of `RATES`; None takes numbers that never rise as survival, and asks about others.
    """
    if rates not in (None, *RATES):
        raise ValueError(f"--rates: found {rates[:40]!r}, expected {' or '.join(RATES)}")
    if not values or not all(0 <= value <= 1 for value in values):
        raise ValueError("found numbers outside 0 to 1, expected rates by position")
    rise = next((position for position in range(1, len(values)) if values[position] > values[position - 1]), None)
    if rates != "conditional" and rise is not None:
        raise ValueError(
            f"found {values[rise]:g} at position {rise + 1} above {values[rise - 1]:g} before it: survival by position "
            "never rises; if these are given the position before, expected --rates conditional"
        )
    survival = list(accumulate(values, mul)) if rates == "conditional" else values
    other = "" if rates else ": they never rise; --rates conditional takes them as given the position before"
    alike = " A vector of ranks looks alike." if rates is None and sum(values) <= 1 else ""
    read_as = "given the position before" if rates == "conditional" else "as survival, of all drafts"
    return counts_of_survival(
        survival, "rates by position", engine=engine, notes=(f"Rates by position are read {read_as}{other}.{alike}",)
    )


def _model(answers: Sequence[dict[str, Any]]) -> str:
    names = {fields["model"] for fields in answers if isinstance(fields.get("model"), str) and fields["model"]}
    if len(names) > 1:
        raise ValueError(f"found models {', '.join(sorted(names))[:80]}, expected one")
    return next(iter(names), "")[:4096]


def _whole(fields: dict[str, Any], name: str, *, most: int = MAX_COUNT) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}: found {str(value)[:40]!r}, expected a whole number from 0")
    return value


def _whole_list(fields: dict[str, Any], name: str) -> list[int]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= MAX_COUNT for value in values):
        raise ValueError(f"{name}: found {str(values)[:40]!r}, expected a list of whole numbers from 0")
    return values
