"""Servers' counts outside metrics and logs: answers as JSON, and rates by position alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    Unrecognised,
    counts_of_one_k,
    counts_of_survival,
    notes_of_left_out,
    read_each,
)
from .logs import counts_of_log

MAX_REQUESTS = 10_000  # each is in every resample: 80 MB
MAX_STEPS = 5_000_000  # of all requests
MIN_LOOP_CHARS = 64  # characters, below which a repeated text says little
MAX_ROWS = 200_000  # of JSON, where they are lines of a log


def counts_of_answers(data: bytes, model: str | None = None) -> ServerCounts:
    """Read JSON: one answer, a list of answers, or one answer on each line; whole answers or the part that counts.

    Also read is a log of which Docker wrapped each line in JSON; `model` is one of its drafters.
    """
    rows, odd = _rows(data)
    parts = [part for row in rows for part in _parts(row)]
    if not parts and (lines := _log_lines(rows)):
        return counts_of_log("\n".join(lines) + "\n", model, odd)
    engines = {engine for engine, _ in parts}
    if not engines:
        raise Unrecognised(f"found {len(rows)} objects without counts")
    if len(engines) > 1:
        raise ValueError(f"found answers of {' and '.join(sorted(engines))}, expected one server's")
    if len(parts) > MAX_REQUESTS:
        raise ValueError(f"found {len(parts):,} requests, expected at most {MAX_REQUESTS:,}")
    # chunks of a stream repeat its id, and the totals so far
    answers = list({fields["id"] or number: fields for number, (_, fields) in enumerate(parts)}.values())
    read = _request if VLLM in engines else _timings
    requests: list[ServerCounts] = []
    steps = 0
    for number, fields in enumerate(answers, start=1):
        name = f"request {number}"
        try:
            requests.append(replace(read(fields), source=name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        steps += requests[-1].drafts or 0
        if steps > MAX_STEPS:
            raise ValueError(f"found more than {MAX_STEPS:,} steps, expected fewer requests")
    notes = notes_of_left_out(odd)
    if len(rows) > len(parts):
        notes.append(f"{len(rows) - len(parts)} answers without counts were left out.")
    if len(parts) > len(answers):
        notes.append(f"{len(parts) - len(answers)} chunks of streams were left out: the last of each answer counts.")
    counts = replace(counts_of_one_k(requests, "totals", notes), model=_model(answers))
    if VLLM in engines:
        if all(request.ordered for request in requests):
            return replace(counts, source="records by step", ordered=True)
        note = "Histograms without the order of steps: nothing can be replayed."
        return replace(counts, source="records by request", ordered=False, notes=(*counts.notes, note))
    if counts.drafts == 0:
        return counts
    note = "llama.cpp's timings are totals of the present setting: nothing by position."
    return replace(counts, mean_length=counts.tokens_per_step, notes=(*counts.notes, note))


def _rows(data: bytes) -> tuple[list[Any], list[str]]:
    """Return the values of JSON, or of its lines, and what is wrong with lines that cannot be read."""
    try:
        whole = read_json(data)
    except ValueError:
        lines = data.splitlines()
        if len(lines) > MAX_ROWS:
            raise ValueError(f"found {len(lines):,} lines, expected at most {MAX_ROWS:,}") from None
        odd: list[str] = []
        rows = [row for _, row in read_each(lines, lambda line: read_json(line) if line.strip() else None, odd)]
        if not any(isinstance(row, dict) for row in rows):
            raise
        return rows, odd
    return whole if isinstance(whole, list) else [whole], []


def _log_lines(rows: Sequence[Any]) -> list[str]:
    """Return the lines of a log that Docker wrapped in JSON; nothing where there are none."""
    wrapped = [row for row in map(_fields, rows) if isinstance(row.get("log"), str)]
    times = [str(row.get("time")) for row in wrapped]
    if times and times[0] > times[-1]:
        raise ValueError("found a log that begins with its newest line, expected the oldest line first")
    return [row["log"].rstrip("\n") for row in wrapped]


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parts(row: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the parts of an answer that count: engine -> fields, with facts of the request."""
    row = _fields(row)
    row = _fields(row.get("response")) or row
    usage = _fields(row.get("usage"))
    prompt = usage.get("prompt_tokens", row.get("tokens_evaluated"))
    name = row["id"] if isinstance(row.get("id"), str) else None
    about = {"id": name, "model": row.get("model"), "prompt_tokens": prompt, "looped": _looped(row)}
    metrics = row.get("metrics")
    fields = _fields(metrics.get("speculative_decoding")) if isinstance(metrics, dict) else row
    if "num_spec_steps" in fields:
        tokens = usage.get("completion_tokens", row.get("completion_tokens"))
        yield VLLM, fields | {"completion_tokens": tokens} | about
    timings = _fields(row.get("timings", row))  # without draft_n where nothing was drafted
    chunk = row.get("stop") is False  # of a stream of /completion, which has no id
    if "predicted_n" in timings and "draft_rounds" not in timings and not chunk:  # mlx-vlm's count rounds
        yield LLAMA_CPP, timings | about


def _looped(row: dict[str, Any]) -> bool | None:
    """Return whether an answer's last half, at least, is one text of up to 200 characters again and again."""
    choices = row.get("choices")
    choice = _fields(choices[0]) if isinstance(choices, list) and choices else row
    text = _fields(choice.get("message")).get("content", choice.get("text", row.get("content")))
    if not isinstance(text, str) or not text:
        return None
    half = text[-max(len(text) // 2, MIN_LOOP_CHARS) :]
    return len(half) >= MIN_LOOP_CHARS and any(
        half[period:] == half[:-period] for period in range(1, len(half) // 4 + 1)[:200]
    )


def _request(fields: dict[str, Any]) -> ServerCounts:
    longest = _whole(fields, "num_spec_tokens", most=MAX_POSITIONS)
    ordered = isinstance(fields.get("per_step_accepted"), list)
    if ordered:
        accepted, drafted = _whole_list(fields, "per_step_accepted"), _whole_list(fields, "per_step_drafted")
        if len(accepted) != len(drafted):
            raise ValueError(
                f"found {len(accepted)} steps accepted and {len(drafted)} drafted, expected as many of each"
            )
    else:
        bins = _whole_list(fields, "acceptance_histogram")
        if sum(bins) > MAX_STEPS:
            raise ValueError(f"acceptance_histogram: found {sum(bins):,} steps, expected fewer")
        accepted = [taken for taken, count in enumerate(bins) for _ in range(count)]
        drafted = [longest] * len(accepted)
    for step, (taken, given) in enumerate(zip(accepted, drafted, strict=True), start=1):
        if not taken <= given <= longest:
            raise ValueError(f"step {step}: found {taken} accepted of {given}, expected no more than {longest} drafted")
    drafted_in_all = _whole(fields, "num_draft_tokens")
    expected = {
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_accepted_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted) if ordered else drafted_in_all,
        "acceptance_histogram": [accepted.count(length) for length in range(longest + 1)],
    }
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{name}: found {str(fields[name])[:60]}, expected {str(value)[:60]}, as the steps add up")
    tokens = None if fields["completion_tokens"] is None else _whole(fields, "completion_tokens")
    request = ServerRequest(tuple(accepted), tuple(drafted), None if tokens is None else tokens - 1)
    return ServerCounts(
        VLLM, "", len(accepted), drafted_in_all, sum(accepted),
        tuple(sum(step >= position for step in accepted) for position in range(1, longest + 1)), tokens, 1,
        (request,), ordered, totals=(_totals(fields, len(accepted), sum(accepted)),),
    )  # fmt: skip


def _timings(fields: dict[str, Any]) -> ServerCounts:
    fields = {"draft_n": 0, "draft_n_accepted": 0} | fields
    tokens, drafted, accepted = (_whole(fields, name) for name in ("predicted_n", "draft_n", "draft_n_accepted"))
    return ServerCounts(
        LLAMA_CPP, "", None if drafted else 0, drafted, accepted, tokens=tokens, requests_done=1,
        totals=(_totals(fields, tokens - 1 - accepted, accepted),),
    )  # fmt: skip


def _totals(fields: dict[str, Any], steps: int, accepted: int) -> RequestTotals:
    prompt = fields["prompt_tokens"]
    known = type(prompt) is int and 0 <= prompt <= MAX_COUNT
    return RequestTotals(max(steps, 0), accepted, prompt if known else None, fields["looped"])


def counts_of_rates(values: Sequence[float], rates: str | None = None, *, engine: str = "unknown") -> ServerCounts:
    """Return published rates by position as counts, without an interval.

    `rates` is one of `RATES`; None takes numbers that never rise as survival, and asks about others.
    """
    if rates not in (None, *RATES):
        raise ValueError(f"--rates: found {rates[:40]!r}, expected {' or '.join(RATES)}")
    if not all(0 <= rate <= 1 for rate in values):
        percent = ": percentages, to be divided by 100" if all(0 <= rate <= 100 for rate in values) else ""
        raise ValueError(f"found numbers outside 0 to 1, expected rates by position{percent}")
    given_before = rates == "conditional"
    rise = next((position for position in range(1, len(values)) if values[position] > values[position - 1]), None)
    if rise is not None and not given_before:
        raise ValueError(
            f"found {values[rise]:g} at position {rise + 1} above {values[rise - 1]:g} before it: survival by position "
            "never rises; if these are given the position before, expected --rates conditional"
        )
    note = "Rates by position are read given the position before."
    if not given_before:
        other = "" if rates else ": they never rise; --rates conditional takes them as given the position before"
        alike = " A vector of ranks looks alike." if rates is None and sum(values) <= 1 else ""
        note = f"Rates by position are read as survival, of all drafts{other}.{alike}"
    survival = list(accumulate(values, mul)) if given_before else values
    return counts_of_survival(survival, "rates by position", engine=engine, notes=(note,))


def _model(answers: Sequence[dict[str, Any]]) -> str:
    names = {fields["model"] for fields in answers if isinstance(fields["model"], str)} - {""}
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
    if not isinstance(values, list):
        raise ValueError(f"{name}: found {str(values)[:40]!r}, expected a list of whole numbers from 0")
    return [_whole({name: value}, name) for value in values]
