"""Read counts from JSON answers (vLLM, llama.cpp, SGLang, mlx-vlm) and from per-position rates."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from sequoia_core.files.safe_files import read_json
from sequoia_core.planning.profile import LLAMA_CPP

from .counts import (
    MAX_COUNT,
    MAX_POSITIONS,
    MLX_VLM,
    RATE_TYPES,
    SGLANG,
    VLLM,
    RequestTotals,
    ServerCounts,
    ServerRequest,
    UnrecognisedError,
    as_dict,
    counts_from_histogram,
    counts_from_survival,
    merge_periods,
    read_lines,
    skipped_line_notes,
)
from .logs import parse_server_log

MAX_REQUESTS = 10_000  # resample weights for this many requests take 80 MB
MAX_RECORDED_STEPS = 5_000_000  # total over all requests
MIN_LOOP_CHARS = 64  # repetition in a shorter text is not significant
MAX_JSON_LINES = 200_000


class AnswerPart(NamedTuple):
    """The part of an answer that contains counts, and how to parse it."""

    engine: str
    parse: Callable[[dict[str, Any]], ServerCounts]
    fields: dict[str, Any]


def parse_answers(data: bytes, model: str | None = None) -> ServerCounts:
    """Parse JSON answers: a single one, a list, or one per line, each complete or only the part with counts.

    Also parses logs in Docker's JSON format; `model` selects one of the drafters in a log.
    """
    rows, skipped = parse_rows(data)
    parts = [part for row in rows for part in _answer_parts(row)]
    if not parts and (lines := _docker_log_lines(rows)):
        return parse_server_log("\n".join(lines) + "\n", model, skipped)
    engines = {part.engine for part in parts}
    if not engines:
        raise UnrecognisedError(f"found {len(rows)} objects without counts")
    if len(engines) > 1:
        raise ValueError(f"found answers from {' and '.join(sorted(engines))}, expected answers from one engine")
    if len(parts) > MAX_REQUESTS:
        raise ValueError(f"found {len(parts):,} requests, expected at most {MAX_REQUESTS:,}")
    # Each chunk of a streamed answer repeats its id and contains the totals so far.
    answers = list({part.fields["id"] or number: part for number, part in enumerate(parts)}.values())
    requests = _parse_requests(answers)
    notes = skipped_line_notes(skipped)
    if len(rows) > len(parts):
        notes.append(f"{len(rows) - len(parts)} answers without counts were skipped.")
    if len(parts) > len(answers):
        notes.append(f"{len(parts) - len(answers)} stream chunks were skipped: only an answer's last chunk is counted.")
    model_name = _model_name([part.fields for part in answers])
    counts = replace(merge_periods(requests, "totals", notes), model=model_name)
    if counts.requests:
        if all(request.ordered for request in requests):
            return replace(counts, source="records by step", ordered=True)
        note = "Histograms do not record the order of steps, so the steps cannot be replayed."
        return replace(counts, source="records by request", ordered=False, notes=(*counts.notes, note))
    if counts.drafts == 0 or counts.positions:
        return counts
    note = f"Answers from {counts.engine} contain totals for the current setting, without per-position counts."
    return replace(counts, mean_length=counts.tokens_per_step, notes=(*counts.notes, note))


def _parse_requests(answers: Sequence[AnswerPart]) -> list[ServerCounts]:
    requests: list[ServerCounts] = []
    steps = 0
    for number, part in enumerate(answers, start=1):
        source = f"request {number}"
        try:
            counts = part.parse(part.fields)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        requests.append(replace(counts, engine=part.engine, source=source))
        steps += counts.drafts or 0
        if steps > MAX_RECORDED_STEPS:
            raise ValueError(f"found more than {MAX_RECORDED_STEPS:,} steps, expected no more: pass fewer requests")
    return requests


def parse_rows(data: bytes) -> tuple[list[Any], list[str]]:
    """Return the values in a JSON or JSON Lines document, and the reason for each skipped line."""
    try:
        whole = read_json(data)
    except ValueError:
        lines = data.splitlines()
        if len(lines) > MAX_JSON_LINES:
            raise ValueError(f"found {len(lines):,} lines, expected at most {MAX_JSON_LINES:,}") from None
        skipped: list[str] = []
        rows = [row for _, row in read_lines(lines, lambda line: read_json(line) if line.strip() else None, skipped)]
        if not any(isinstance(row, dict) for row in rows):
            raise
        return rows, skipped
    return whole if isinstance(whole, list) else [whole], []


def _docker_log_lines(rows: Sequence[Any]) -> list[str]:
    wrapped = [row for row in map(as_dict, rows) if isinstance(row.get("log"), str)]
    times = [str(row.get("time")) for row in wrapped]
    if times and times[0] > times[-1]:
        raise ValueError("found a log that begins with its newest line, expected the oldest line first")
    return [row["log"].rstrip("\n") for row in wrapped]


def _answer_parts(row: Any) -> Iterable[AnswerPart]:
    """Yield each part of an answer that contains counts; its fields include facts about the request."""
    row = as_dict(row)
    row = as_dict(row.get("response")) or row
    usage = as_dict(row.get("usage"))
    prompt = usage.get("prompt_tokens", row.get("tokens_evaluated"))
    meta = as_dict(row.get("meta_info"))
    name = next((each["id"] for each in (row, meta) if isinstance(each.get("id"), str)), None)
    about = {"id": name, "model": row.get("model"), "prompt_tokens": prompt, "looped": _ends_in_loop(row)}
    metrics = row.get("metrics")
    fields = as_dict(metrics.get("speculative_decoding")) if isinstance(metrics, dict) else row
    fields = as_dict(row.get("spec_decode_acceptance")) or fields  # a record of AIPerf
    tokens = usage.get("completion_tokens", fields.get("completion_tokens"))
    if "num_spec_steps" in fields:
        engine = fields.get("engine")
        engine = engine[:40] if isinstance(engine, str) else VLLM
        yield AnswerPart(engine, _parse_vllm_record, fields | {"completion_tokens": tokens} | about)
    details = as_dict(as_dict(row.get("sglext")).get("spec_tokens_details"))
    sglang = {"completion_tokens": tokens} | meta | details
    if "spec_verify_ct" in sglang:
        yield AnswerPart(SGLANG, _parse_sglang_answer, sglang | about)
    timings = as_dict(row.get("timings", row))  # draft_n is missing if nothing was drafted
    is_chunk = row.get("stop") is False  # chunk of a /completion stream, which has no id
    if "draft_rounds" in timings:
        yield AnswerPart(MLX_VLM, _parse_mlx_timings, timings | about)
    elif "predicted_n" in timings and not is_chunk:
        yield AnswerPart(LLAMA_CPP, _parse_llama_timings, timings | about)


def _ends_in_loop(row: dict[str, Any]) -> bool | None:
    """Return whether the second half of an answer repeats a pattern of at most 200 characters; None without text."""
    choices = row.get("choices")
    choice = as_dict(choices[0]) if isinstance(choices, list) and choices else row
    text = as_dict(choice.get("message")).get("content", choice.get("text", row.get("content")))
    if not isinstance(text, str) or not text:
        return None
    half = text[-max(len(text) // 2, MIN_LOOP_CHARS) :]
    periods = range(1, len(half) // 4 + 1)[:200]
    return len(half) >= MIN_LOOP_CHARS and any(half[period:] == half[:-period] for period in periods)


def _parse_vllm_record(fields: dict[str, Any]) -> ServerCounts:
    longest = _whole(fields, "num_spec_tokens", most=MAX_POSITIONS)
    if isinstance(fields.get("acceptance_histogram"), dict):  # without the empty bins
        sparse = parse_bins(fields["acceptance_histogram"])
        fields = fields | {"acceptance_histogram": [sparse.get(length, 0) for length in range(longest + 1)]}
    ordered = isinstance(fields.get("per_step_accepted"), list)
    if ordered:
        accepted = _whole_list(fields, "per_step_accepted")
        drafted = _whole_list(fields, "per_step_drafted")
        if len(accepted) != len(drafted):
            raise ValueError(
                f"found accepted tokens for {len(accepted)} steps and drafted tokens for {len(drafted)}, expected both "
                "for every step"
            )
    else:
        bins = _whole_list(fields, "acceptance_histogram")
        if sum(bins) > MAX_RECORDED_STEPS:
            raise ValueError(f"acceptance_histogram: found {sum(bins)} steps, expected at most {MAX_RECORDED_STEPS:,}")
        accepted = [length for length, count in enumerate(bins) for _ in range(count)]
        drafted = [longest] * len(accepted)
    for step, (taken, given) in enumerate(zip(accepted, drafted, strict=True), start=1):
        if not taken <= given <= longest:
            raise ValueError(
                f"step {step}: found {taken} accepted of {given} drafted, expected accepted <= drafted <= {longest}"
            )
    draft_tokens = _whole(fields, "num_draft_tokens")
    expected = {
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_accepted_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted) if ordered else draft_tokens,
        "acceptance_histogram": [accepted.count(length) for length in range(longest + 1)],
    }
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{name}: found {str(fields[name])[:60]}, expected {str(value)[:60]}, to match the steps")
    tokens = None if fields["completion_tokens"] is None else _whole(fields, "completion_tokens")
    request = ServerRequest(tuple(accepted), tuple(drafted), None if tokens is None else tokens - 1)
    return ServerCounts(
        VLLM,
        "",
        len(accepted),
        draft_tokens,
        sum(accepted),
        tuple(sum(step >= position for step in accepted) for position in range(1, longest + 1)),
        tokens,
        requests_done=1,
        requests=(request,),
        ordered=ordered,
        totals=(_request_totals(fields, len(accepted), sum(accepted)),),
    )


def _parse_llama_timings(fields: dict[str, Any]) -> ServerCounts:
    fields = {"draft_n": 0, "draft_n_accepted": 0} | fields
    tokens, drafted, accepted = (_whole(fields, name) for name in ("predicted_n", "draft_n", "draft_n_accepted"))
    totals = _request_totals(fields, tokens - 1 - accepted, accepted)
    drafts = None if drafted else 0
    return ServerCounts(LLAMA_CPP, "", drafts, drafted, accepted, tokens=tokens, requests_done=1, totals=(totals,))


def _parse_mlx_timings(fields: dict[str, Any]) -> ServerCounts:
    """Parse the timings of mlx-vlm, which are None without a drafter."""
    names = ("draft_rounds", "draft_n", "draft_n_accepted")
    rounds, drafted, accepted = (_whole({name: fields.get(name) or 0}, name) for name in names)
    drafter = str(fields.get("draft_kind") or "")[:40]
    totals = _request_totals(fields, rounds, accepted)
    steps = rounds or None
    tokens = None if fields.get("predicted_n") is None else _whole(fields, "predicted_n")
    return ServerCounts(
        MLX_VLM,
        "",
        rounds,
        drafted,
        accepted,
        tokens=tokens,
        requests_done=1,
        totals=(totals,),
        drafter=drafter,
        steps=steps,
    )


def _parse_sglang_answer(fields: dict[str, Any]) -> ServerCounts:
    """Parse the totals of SGLang's answer, whose tokens per step are all its tokens ÷ verification steps."""
    steps = _whole(fields, "spec_verify_ct")
    accepted = max(_whole(fields, "completion_tokens") - steps, 0) if steps else 0
    drafted = _whole(fields, "spec_num_proposed_drafts") if fields.get("spec_num_proposed_drafts") else None
    totals = (_request_totals(fields, steps, accepted),)
    if bins := fields.get("spec_correct_drafts_histogram"):
        counts = counts_from_histogram(parse_bins(bins), SGLANG, "")
        longest = len(counts.positions)
        if counts.drafts == steps and (drafted or 0) <= longest * steps:  # more are drafted by a tree
            return replace(counts, draft_tokens=drafted, requests_done=1, totals=totals, steps=steps)
    return ServerCounts(SGLANG, "", steps, drafted, accepted, requests_done=1, totals=totals, steps=steps)


def parse_bins(value: Any) -> dict[int, int]:
    """Return a histogram as {bin: count}, from a list, or from a mapping whose keys may be strings."""
    if isinstance(value, dict) and all(re.fullmatch(r"\d{1,4}", str(key), re.ASCII) for key in value):
        named = {int(key): {"histogram": count} for key, count in value.items()}
        return {key: _whole(count, "histogram", most=MAX_RECORDED_STEPS) for key, count in named.items()}
    return dict(enumerate(_whole_list({"histogram": value}, "histogram")))


def _request_totals(fields: dict[str, Any], steps: int, accepted: int) -> RequestTotals:
    prompt = fields["prompt_tokens"]
    known = type(prompt) is int and 0 <= prompt <= MAX_COUNT
    return RequestTotals(max(steps, 0), accepted, prompt if known else None, fields["looped"])


def counts_from_rates(values: Sequence[float], rates: str | None = None, *, engine: str = "unknown") -> ServerCounts:
    """Return published per-position rates as counts, without intervals.

    `rates` is one of `RATE_TYPES`; if it is None, the rates are read as survival and must never increase.
    """
    if rates not in (None, *RATE_TYPES):
        raise ValueError(f"--rates: found {rates[:40]!r}, expected {' or '.join(RATE_TYPES)}")
    if not all(0 <= rate <= 1 for rate in values):
        percent = ": divide percentages by 100" if all(0 <= rate <= 100 for rate in values) else ""
        raise ValueError(f"found numbers outside the range 0 to 1, expected per-position rates{percent}")
    if rates == "conditional":
        note = "Per-position rates are read as conditional on the position before."
        values = list(accumulate(values, mul))
    else:
        rise = next((position for position in range(1, len(values)) if values[position] > values[position - 1]), None)
        if rise is not None:
            raise ValueError(
                f"found {values[rise]:g} at position {rise + 1} after {values[rise - 1]:g}, expected survival, which "
                "never increases; if the rates are conditional on the position before, use --rates conditional"
            )
        other = "" if rates else "; if they are conditional on the position before, use --rates conditional"
        note = f"Per-position rates are read as survival, a share of all drafts{other}."
    return counts_from_survival(values, "per-position rates", engine=engine, notes=(note,))


def _model_name(answers: Sequence[dict[str, Any]]) -> str:
    names = {fields["model"] for fields in answers if isinstance(fields["model"], str)} - {""}
    if len(names) > 1:
        raise ValueError(f"found models {', '.join(sorted(names))[:80]}, expected one")
    return next(iter(names), "")[:4096]


def _whole(fields: dict[str, Any], name: str, *, most: int = MAX_COUNT) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}: found {str(value)[:40]!r}, expected an integer from 0 to {most:,}")
    return value


def _whole_list(fields: dict[str, Any], name: str) -> list[int]:
    values = fields.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{name}: found {str(values)[:40]!r}, expected a list of integers of at least 0")
    return [_whole({name: value}, name) for value in values]
