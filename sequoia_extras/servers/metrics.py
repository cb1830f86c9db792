"""Read speculative decoding counters from the Prometheus metrics of vLLM, llama.cpp's server and SGLang."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sequoia_core.planning.profile import LLAMA_CPP

from .counts import (
    MAX_COUNT,
    MAX_LINE,
    MAX_POSITIONS,
    SGLANG,
    VLLM,
    ServerCounts,
    UnrecognisedError,
    merge_periods,
    read_lines,
    skipped_line_notes,
)

# Possessive quantifiers (++, *+) prevent backtracking, so parsing stays linear.
_SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*+)(?:\s*+\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?+"
    r"\s++([^\s{]\S*+)(?:\s++-?[\d.]++(?=\s|$))?+\s*+(?:#.*)?",  # the rest may be an exemplar
    re.ASCII,
)
_LABEL = re.compile(r'\s*+([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)', re.ASCII)
_LABELS = re.compile(f"(?:{_LABEL.pattern})*+", re.ASCII)
_AVERAGE = "spec_accept_length"
_KEYS = {
    "generation_tokens_total": "tokens",
    "tokens_predicted_total": "tokens",
    "request_success_total": "requests",
    _AVERAGE: _AVERAGE,
}
_RELEVANT = re.compile("|".join(["spec_decode_num_", *_KEYS]))
_NAME = re.compile(
    r"(.*?)(?:[:_]?spec_decode_num_(drafts(?:_created)?|draft_tokens|accepted_tokens(?:_per_pos)?)(?:_total)?"
    f"|:({'|'.join(_KEYS)}))"
)
_CREATED = "drafts_created"  # the counter's creation time, added by Prometheus; llama.cpp has none
_DRAFT_COUNTERS = ("accepted_tokens", "draft_tokens", "drafts")
_ENGINE_PREFIXES = {"vllm": VLLM, "llamacpp": LLAMA_CPP, "sglang": SGLANG}


class Series(NamedTuple):
    """Counters of one model in one engine process; they are reset together."""

    engine: str
    model: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.labels)[:60] or self.engine


Values = dict[str | int, float]  # counter name, or position from 0 -> value
Reading = dict[Series, Values]


def is_metrics(text: str) -> bool:
    """Return whether a text contains lines in the Prometheus format."""
    line = r"^(?:# (?:HELP|TYPE) |[\w:]*spec_decode_num_|\w+:\w+(?:\{[^\n]*\})? [-+.\dEe]+$)"
    return re.search(line, text, re.MULTILINE | re.ASCII) is not None


def parse_metrics(after: str, before: str | None, *, engine: str = "auto", model: str | None = None) -> ServerCounts:
    """Return the counts between two readings of the metrics, or since the server's start if `before` is None."""
    skipped: list[str] = []
    reading = _parse_samples(after, skipped)
    later = _select(reading, engine, model)
    if not reading:
        raise UnrecognisedError("found metrics without speculative decoding counters")
    if not later:
        listed = ", ".join(sorted({f"{series.engine} {series.model}".strip() for series in reading}))[:80]
        asked = f"engine {engine}, model {(model or 'any')[:40]}"
        raise ValueError(f"found counters of {listed}, expected counters of {asked}")
    notes = []
    earlier: Reading = {}
    if before is None:
        notes.append("With only one reading, the counts start at the server's start and include its warm-up.")
    else:
        skipped_before: list[str] = []
        earlier = _select(_parse_samples(before, skipped_before), engine, model)
        skipped += [f"the first reading, {line}" for line in skipped_before]
        if earlier and not earlier.keys() & later.keys():
            names = [f"{series.model or series.engine} ({series})"[:80] for series in (*earlier, *later)]
            raise ValueError(
                f"found counters of {names[0]} in the earlier reading and of {names[-1]} in the later one, expected "
                "the same in both"
            )
    if any(_AVERAGE in values for values in later.values()):
        return _average_gauges(later, skipped)
    parts = []
    for series, values in later.items():
        since = _subtract(series, values, earlier.get(series, {}), notes)
        try:
            part = _counts(series, since, notes)
        except ValueError as error:
            raise ValueError(skipped[0] if skipped else str(error)) from error
        parts.append(replace(part, source=str(series)))
    if earlier and not all(_CREATED in values for values in later.values()):
        notes.append(
            "The metrics do not contain the server's start time: a restart would go unnoticed if the counters have "
            "since exceeded the first reading."
        )
    gone = [series for series in earlier if series not in later]
    if gone:
        notes.append(f"{gone[0]} is only in the first reading: its later counts are missing.")
    if len(later) > 1:
        notes.append(f"Sum over {len(later)} engines.")
    counts = merge_periods(parts, "counters", [*notes, *skipped_line_notes(skipped)])
    if skipped and not counts.drafts:
        raise ValueError(skipped[0])
    return counts


def _subtract(series: Series, values: Values, earlier: Values, notes: list[str]) -> Values:
    fell = any(earlier[name] > values[name] for name in earlier.keys() & values.keys())
    if fell and earlier.get(_CREATED, 0.0) == values.get(_CREATED):
        raise ValueError(
            f"the counters of {series}: found lower counts than in the earlier reading without a restart, expected "
            "higher ones (pass the earlier reading with --before)"
        )
    if fell or earlier.get(_CREATED, math.inf) < values.get(_CREATED, 0.0):
        notes.append(f"The counters of {series} were reset between the readings; counting starts at the reset.")
        earlier = {}
    # The earlier reading may predate the first draft; tokens, however, are counted from the server's start.
    kept = {name for name in values if not earlier or name in earlier or name not in _KEYS.values()}
    return {name: values[name] - earlier.get(name, 0) for name in kept}


def _counts(series: Series, values: Values, notes: list[str]) -> ServerCounts:
    positions = sorted(name for name in values if isinstance(name, int))
    if positions != list(range(len(positions))):
        raise ValueError(f"found positions {positions[:8]}, expected 0, 1, 2, … without gaps")
    known = {name: int(value) for name, value in values.items()}
    missing = [name for name in _DRAFT_COUNTERS if name not in known]
    if missing and known.get("drafts") != 0 and (positions or len(missing) < len(_DRAFT_COUNTERS)):
        raise ValueError(f"found no counter of {missing[0].replace('_', ' ')}, expected complete metrics")
    drafts = known.get("drafts", 0)
    if drafts and not positions:
        notes.append("There are only totals, no per-position counts, so other values of K cannot be estimated.")
    counts = ServerCounts(
        series.engine,
        "counters",
        drafts,
        known.get("draft_tokens"),
        known.get("accepted_tokens"),
        tuple(known[position] for position in positions),
        requests_done=known.get("requests"),
        model=series.model,
    )
    tokens = known.get("tokens")
    if tokens is not None and tokens < counts.fewest_tokens:
        notes.append(
            f"The count of {tokens:,} tokens is ignored, because these drafts generate at least "
            f"{counts.fewest_tokens:,}; the share of steps with a draft is therefore unknown."
        )
        return counts
    return replace(counts, tokens=tokens)


def _average_gauges(later: Reading, skipped: list[str]) -> ServerCounts:
    lengths = [values[_AVERAGE] for values in later.values() if _AVERAGE in values]
    series = next(iter(later))
    counts = average_over_ranks(lengths, series.engine, skipped_line_notes(skipped))
    return replace(counts, model=series.model)


def average_over_ranks(lengths: Sequence[float], engine: str, notes: Sequence[str] = ()) -> ServerCounts:
    """Return the average of the tokens per step of several ranks, without those that have not drafted."""
    drafted = [length for length in lengths if length] or lengths  # a rank reports 0 before its first draft
    if not min(drafted) >= 1:
        raise ValueError(f"spec_accept_length: found {min(drafted):g}, expected 1 or more tokens per step")
    said = ["SGLang's gauges are averages over recent steps; without counts, there is no interval."]
    if len(lengths) > 1:
        said.append(f"Average over {len(drafted)} of {len(lengths)} ranks ({min(drafted):.2f} to {max(drafted):.2f}).")
    return ServerCounts(engine, "averages", mean_length=sum(drafted) / len(drafted), notes=(*said, *notes))


def _parse_samples(text: str, skipped: list[str]) -> Reading:
    """Return the counters of one reading; append the reason for each bad line to `skipped`."""
    reading: Reading = {}
    for number, (name, series, key, value) in read_lines(text.splitlines(keepends=True), _parse_sample, skipped):
        values = reading.setdefault(series, {})
        if key == "requests":  # one sample per finish reason
            value += values.get(key, 0)
        elif key in values:
            raise ValueError(f"line {number}: found {name} twice, expected it once per engine")
        values[key] = value
    if skipped and not reading:
        raise ValueError(skipped[0])
    return reading


def _parse_sample(line: str) -> tuple[str, Series, str | int, float] | None:
    """Return a sample's name, series, counter and value; None if it is unrelated to speculative decoding."""
    if line.lstrip().startswith("#") or _RELEVANT.search(line) is None:
        return None
    if not line.endswith(("\n", "\r")):
        raise ValueError("found a truncated line, expected a complete line")
    line = line.strip()
    if len(line) > MAX_LINE:
        raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        raise ValueError(f"found {line[:60]!r}, expected name{{labels}} value")
    name, labels, value = sample.groups(default="")
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key: str | int = match[2] or _KEYS[match[3]]
    number = _parse_value(name, value, whole=key not in (_AVERAGE, _CREATED))
    pairs = _LABEL.findall(labels)
    tags = dict(pairs)
    if not _LABELS.fullmatch(labels.strip()) or len(tags) < len(pairs):
        raise ValueError(f'found labels {labels.strip()[:60]!r}, expected name="value" pairs with unique names')
    model = tags.pop("model_name", "")
    if key == "accepted_tokens_per_pos":
        position = tags.pop("position", "")
        if not re.fullmatch(r"\d{1,4}", position, re.ASCII) or int(position) >= MAX_POSITIONS:
            raise ValueError(f"found position {position[:20]!r}, expected 0 to {MAX_POSITIONS - 1}")
        key = int(position)
    if key == "requests":
        tags.pop("finished_reason", None)
    prefix = match[1].lower().replace("_", "").replace(".", "")
    engine = next((each for part, each in _ENGINE_PREFIXES.items() if part in prefix), match[1][:40] or "unknown")
    return name, Series(engine, model, tuple(sorted(tags.items()))), key, number


def _parse_value(name: str, text: str, *, whole: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_COUNT or (whole and value != int(value)):
        expected = "a count" if whole else "a number of at least 0"
        raise ValueError(f"found {name} = {text[:20]}, expected {expected}")
    return value


def _select(reading: Reading, engine: str, model: str | None) -> Reading:
    """Return the series of the requested engine and model; raise ValueError if there are several of either."""
    wanted = {
        series: values
        for series, values in reading.items()
        if engine in ("auto", series.engine) and model in (None, series.model)
    }
    speculating = {series: values for series, values in wanted.items() if values.keys() - {"tokens", "requests"}}
    speculating = speculating or wanted  # a server without a draft, or before its first draft
    for what in ("engine", "model"):
        names = sorted({getattr(series, what) for series in speculating})
        if len(names) > 1:
            listed = ", ".join(names)[:80]
            raise ValueError(f"found {what}s {listed}, expected one: select the {what} (--{what})")
    return speculating
