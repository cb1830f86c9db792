"""Read benchmark reports: `vllm bench serve`, SGLang's `bench_serving`, AIPerf and SPEED-Bench's `specdec_bench`.

The first two print a report and can save it as JSON. Several reports usually differ in their load or settings, so they
are never summed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import ceil
from typing import Any

from .counts import (
    MAX_COUNT,
    MAX_POSITIONS,
    SGLANG,
    VLLM,
    ServerCounts,
    as_dict,
    counts_from_histogram,
    counts_from_survival,
)
from .logs import add_positions
from .records import parse_bins, parse_rows

TITLE = "Serving Benchmark Result"
UNKNOWN_ENGINE = "unknown"
MAX_REPORTS = 1000
_SPEED = "Output token throughput (tok/s)"
_LABELS = {  # key in the JSON of both tools -> label in their reports
    "spec_decode_num_drafts": "Drafts",
    "spec_decode_draft_tokens": "Draft tokens",
    "spec_decode_accepted_tokens": "Accepted tokens",
    "spec_decode_acceptance_length": "Acceptance length",
    "accept_length": "Accept length",
    "output_throughput": _SPEED,
}
_FIELD = re.compile(
    rf"^[ \t]*+({'|'.join(map(re.escape, _LABELS.values()))}|Position \d{{1,4}}):[ \t]*+"
    r"(\d{1,16}+(?:\.\d{0,16}+)?+)[ \t\r]*+$",
    re.MULTILINE,
)
_SPECULATIVE = re.compile(r"^[ \t]*+(?:Accept(?:ance)? length|Drafts|Position 0):[ \t]*+\d", re.MULTILINE)
_RATES = "spec_decode_per_position_acceptance_rates"
_AIPERF = "pooled_spec_decode_acceptance_histogram"
_SPEED_BENCH = ("Acceptance_Length_Histogram", "acceptance_length_histogram")  # in results and in profiles
_JSON_MARK = re.compile(f'"(?:request_throughput|{_RATES}|accept_length|{_AIPERF}|{"|".join(_SPEED_BENCH)})":')

Parsed = tuple[ServerCounts | None, Mapping[str, float]]  # counts, if any, and figures by their label in the report


def is_report(text: str) -> bool:
    """Return whether a text contains a printed report, or the part of one on speculative decoding."""
    return TITLE in text or _SPECULATIVE.search(text) is not None


def is_json_report(text: str) -> bool:
    """Return whether a JSON text contains the results of a benchmark with speculative decoding."""
    return _JSON_MARK.search(text) is not None


def parse_reports(text: str, wanted: str | None = None) -> ServerCounts:
    """Parse printed reports; `wanted` selects one of several by name, such as "report 2"."""
    reports: list[dict[str, float]] = []
    for part in text.split(TITLE):
        reports.append({})
        for label, value in _FIELD.findall(part):
            if label in reports[-1]:  # the next report, pasted without its title
                reports.append({})
            reports[-1][label] = float(value)
    return _select(reports, lambda fields: (_parse_report(fields, _listed_rates(fields)), fields), wanted)


def parse_json_reports(text: str, wanted: str | None = None) -> ServerCounts:
    """Parse saved results: one, a list, or one per line; `wanted` selects one of several."""
    rows, _ = parse_rows(text.encode())
    return _select(rows, _parse_row, wanted)


def _select(reports: Sequence[Any], parse: Callable[[Any], Parsed], wanted: str | None) -> ServerCounts:
    """Return the counts of the requested report or of the one with the most drafts, with a note that lists all."""
    if len(reports) > MAX_REPORTS:
        raise ValueError(f"found {len(reports):,} benchmark reports, expected at most {MAX_REPORTS:,}")
    known = [(counts, fields) for counts, fields in map(parse, reports) if counts is not None]
    if not known:
        raise ValueError("found a benchmark report without figures on speculative decoding: was it enabled?")
    if len(known) == 1:
        return replace(known[0][0], source="benchmark report")
    named = {f"report {number}": each for number, each in enumerate(known, start=1)}
    chosen = wanted if wanted in named else max(named, key=lambda name: named[name][0].drafts or 0)
    listed = ", ".join(f"{name} ({_summary(*each)})" for name, each in named.items())[:400]
    note = (
        f"{len(named)} reports were found: {listed}. They are not summed; only {chosen} is used. To use another one, "
        f'select it as the model (--model "{next(name for name in named if name != chosen)}").'
    )
    counts = named[chosen][0]
    return replace(counts, source=chosen, notes=(note, *counts.notes))


def _summary(counts: ServerCounts, fields: Mapping[str, float]) -> str:
    facts = []
    if counts.drafts is not None and not counts.published:
        facts.append(f"{counts.drafts:,} drafts")
    if counts.tokens_per_step is not None:
        facts.append(f"{counts.tokens_per_step:.2f} tokens per step")
    if _SPEED in fields:
        facts.append(f"{fields[_SPEED]:,.1f} tokens per second")
    return ", ".join(facts)


def _listed_rates(fields: Mapping[str, float]) -> list[float]:
    rates: list[float] = []
    for label in map("Position {}".format, count()):
        if label not in fields:
            return rates
        rates.append(fields[label] / 100)
    return rates


def _parse_report(fields: Mapping[str, float], rates: Sequence[float], model: str = "") -> ServerCounts | None:
    """Return the counts in a report; None without figures on speculative decoding."""
    if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
        raise ValueError(f"found acceptance rates {str(rates)[:60]}, expected shares of all drafts from 0 to 1")
    totals = [fields.get(label) for label in ("Drafts", "Draft tokens", "Accepted tokens")]
    mean = fields.get("Acceptance length", fields.get("Accept length"))
    if None not in totals:
        drafts, drafted, accepted = (_whole(total) for total in totals)
        return add_positions(ServerCounts(VLLM, "", drafts, drafted, accepted, model=model), rates)
    if rates:
        note = "The report does not contain the number of drafts, so there is no interval."
        return replace(counts_from_survival(rates, "", engine=VLLM, notes=(note,)), model=model)
    if mean is None:
        return None
    if not 1 <= mean <= MAX_POSITIONS:
        raise ValueError(f"found {mean:g} tokens per step, expected 1 or more")
    note = "The report contains only an average, so there is no interval."
    engine = SGLANG if "Accept length" in fields else VLLM
    return ServerCounts(engine, "", mean_length=mean, model=model, notes=(note,))


def _whole(value: Any) -> int:
    if not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT or value != int(value):
        raise ValueError(f"found {str(value)[:40]!r}, expected a count")
    return int(value)


def _parse_row(row: Any) -> Parsed:
    row = as_dict(row)
    fields = {label: row[key] for key, label in _LABELS.items() if type(row.get(key)) in (int, float)}
    model = row["model_id"][:4096] if isinstance(row.get("model_id"), str) else ""
    if row.get(_AIPERF):
        bins = parse_bins(row[_AIPERF])
        drafted = as_dict(row.get("total_draft_tokens")).get("avg")
        drafted = None if drafted is None else _whole(drafted)
        longest = ceil((drafted or 0) / max(sum(bins.values()), 1))
        return counts_from_histogram(bins, UNKNOWN_ENGINE, "", longest=longest, drafted=drafted), fields
    steps = next((row[key] for key in _SPEED_BENCH if row.get(key)), None)
    if steps is not None:  # a step yields one token in addition to the accepted ones
        bins = {tokens - 1: steps for tokens, steps in parse_bins(steps).items() if tokens}
        k = row.get("num_speculative_tokens")
        counts = counts_from_histogram(bins, UNKNOWN_ENGINE, "", longest=k if isinstance(k, int) else 0)
        method = row.get("method")
        return replace(counts, drafter=method[:40] if isinstance(method, str) else ""), fields
    rates = row.get(_RATES)
    return _parse_report(fields, rates if isinstance(rates, list) else [], model), fields
