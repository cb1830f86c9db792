"""Counters of speculative decoding in Prometheus text: of vLLM, llama.cpp's server and SGLang."""

import math
import re
from dataclasses import replace
from typing import NamedTuple

from ..files.gguf_header import LLAMA_CPP
from .counts import (
    MAX_COUNT,
    MAX_LINE,
    MAX_POSITIONS,
    SGLANG,
    VLLM,
    ServerCounts,
    Unrecognised,
    counts_of_one_k,
    notes_of_left_out,
    read_each,
)

# Runs are never given back (++, *+): a run of spaces that fits nowhere would be tried from each of its places.
_SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*+)(?:\s*+\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?+"
    r"\s++([^\s{]\S*+)(?:\s++-?[\d.]++(?=\s|$))?+\s*+(?:#.*)?",  # the rest may be an exemplar
    re.ASCII,
)
_LABEL = re.compile(r'\s*+([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)', re.ASCII)
_LABELS = re.compile(f"(?:{_LABEL.pattern})*+", re.ASCII)
_AVERAGE = "spec_accept_length"
_KEYS = {
    "generation_tokens_total": "tokens", "tokens_predicted_total": "tokens", "request_success_total": "requests",
    _AVERAGE: _AVERAGE,
}  # fmt: skip
_OURS = re.compile("|".join(["spec_decode_num_", *_KEYS]))
_NAME = re.compile(
    r"(.*?)(?:[:_]?spec_decode_num_(drafts(?:_created)?|draft_tokens|accepted_tokens(?:_per_pos)?)(?:_total)?"
    f"|:({'|'.join(_KEYS)}))"
)
_CREATED = "drafts_created"  # a time, of Prometheus' own; in llama.cpp's metrics there is none
_DRAFTED = ("accepted_tokens", "draft_tokens", "drafts")


class Series(NamedTuple):
    """One engine of one model: what is summed, and what is reset together."""

    engine: str
    model: str
    replica: tuple[tuple[str, str], ...]


Values = dict[str | int, float]  # name of a count, or position from 0 -> value
Reading = dict[Series, Values]


def looks_like_metrics(text: str) -> bool:
    """Whether a text has lines of Prometheus' format."""
    line = r"^(?:# (?:HELP|TYPE) |[\w:]*spec_decode_num_|\w+:\w+(?:\{[^\n]*\})? [-+.\dEe]+$)"
    return re.search(line, text, re.MULTILINE | re.ASCII) is not None


def counts_between(after: str, before: str | None, *, engine: str = "auto", model: str | None = None) -> ServerCounts:
    """Return the counts between two readings, or since the server's start, of one of `ENGINES` or "auto"."""
    odd: list[str] = []
    reading = _reading(after, odd)
    later = _wanted(reading, engine, model)
    if not reading:
        raise Unrecognised("found metrics without counters of speculative decoding")
    if not later:
        found = sorted({f"{series.engine} {series.model}".strip() for series in reading})
        asked = f"engine {engine}, model {(model or 'any')[:40]}"
        raise ValueError(f"found counters of {', '.join(found)[:80]}, expected those of {asked}")
    notes = []
    earlier: Reading = {}
    if before is None:
        notes.append("One reading: counts since the server's start, warm-up included.")
    else:
        first: list[str] = []
        earlier = _wanted(_reading(before, first), engine, model)
        odd += [f"the first reading, {line}" for line in first]
        if earlier and not earlier.keys() & later.keys():
            names = [f"{each.model or each.engine} ({_named(each)})"[:80] for each in (*earlier, *later)]
            raise ValueError(
                f"found counters of {names[0]} in the earlier reading and of {names[-1]} in the later, expected the "
                "same in both"
            )
    if any(_AVERAGE in values for values in later.values()):
        return _averages(later, odd)
    parts = []
    for series, values in later.items():
        then = earlier.get(series, {})
        fell = any(then[name] > values[name] for name in then.keys() & values.keys())
        if fell and then.get(_CREATED, 0.0) == values.get(_CREATED):
            raise ValueError(
                f"the counters of {_named(series)}: found lower counts than in the earlier reading of the same start, "
                "expected the earlier reading first (--before)"
            )
        if fell or then.get(_CREATED, math.inf) < values.get(_CREATED, 0.0):
            notes.append(f"The counters of {_named(series)} began again between the readings: counted from there.")
            then = {}
        # an earlier reading may hold no draft yet, but tokens count from the start of a server
        kept = {name for name in values if not then or name in then or name not in _KEYS.values()}
        try:
            part = _counts(series, {name: values[name] - then.get(name, 0) for name in kept}, notes)
            parts.append(replace(part, source=_named(series)))
        except ValueError as error:
            raise ValueError(odd[0] if odd else str(error)) from error
    if earlier and not all(_CREATED in values for values in later.values()):
        notes.append(
            "The metrics lack the time of the server's start: a restart would go unnoticed if the counters have since "
            "passed the first reading."
        )
    gone = [series for series in earlier if series not in later]
    if gone:
        notes.append(f"{_named(gone[0])} is in the first reading alone: what it counted since is missing.")
    if len(later) > 1:
        notes.append(f"{len(later)} engines, summed.")
    counts = counts_of_one_k(parts, "counters", [*notes, *notes_of_left_out(odd)])
    if odd and not counts.drafts:
        raise ValueError(odd[0])
    return counts


def _counts(series: Series, total: Values, notes: list[str]) -> ServerCounts:
    places = sorted(name for name in total if isinstance(name, int))
    if places != list(range(len(places))):
        raise ValueError(f"found positions {places[:8]}, expected 0, 1, 2, … without gaps")
    known = {name: int(value) for name, value in total.items()}
    missing = [name for name in _DRAFTED if name not in known]
    if missing and known.get("drafts") != 0 and (places or len(missing) < len(_DRAFTED)):
        raise ValueError(f"found no counter of {missing[0].replace('_', ' ')}, expected the whole text")
    drafts, tokens = known.get("drafts", 0), known.get("tokens")
    if drafts and not places:
        notes.append("No counts by position: totals alone, which say nothing of another k.")
    counts = ServerCounts(
        series.engine, "counters", drafts, known.get("draft_tokens"), known.get("accepted_tokens"),
        tuple(known[place] for place in places), requests_done=known.get("requests"), model=series.model,
    )  # fmt: skip
    if tokens is not None and tokens < counts.fewest_tokens:
        notes.append(
            f"{tokens:,} tokens were left out, where these drafts make {counts.fewest_tokens:,} or more: the share "
            "of steps with a draft is unknown."
        )
        tokens = None
    return replace(counts, tokens=tokens)


def _averages(later: Reading, odd: list[str]) -> ServerCounts:
    lengths = [values[_AVERAGE] for values in later.values() if _AVERAGE in values]
    drafted = [length for length in lengths if length] or lengths  # 0 before a rank's first draft
    if not min(drafted) >= 1:
        raise ValueError(f"spec_accept_length: found {min(drafted):g}, expected 1 or more tokens per step")
    notes = ["SGLang's gauges are averages of its last steps: no counts, no positions, and so no interval."]
    if len(lengths) > 1:
        notes.append(f"{len(drafted)} of {len(lengths)} ranks, averaged: {min(drafted):.2f} to {max(drafted):.2f}.")
    series = next(iter(later))
    return ServerCounts(
        series.engine, "averages", mean_length=sum(drafted) / len(drafted), model=series.model,
        notes=(*notes, *notes_of_left_out(odd)),
    )  # fmt: skip


def _reading(text: str, odd: list[str]) -> Reading:
    """Return the counts of one reading; `odd` says what is wrong with lines left out."""
    reading: Reading = {}
    for number, (name, series, key, value) in read_each(text.splitlines(keepends=True), _sample, odd):
        values = reading.setdefault(series, {})
        if key == "requests":  # by reason of ending
            value += values.get(key, 0)
        elif key in values:
            raise ValueError(f"line {number}: found {name} twice, expected it once for each engine")
        values[key] = value
    if odd and not reading:
        raise ValueError(odd[0])
    return reading


def _sample(line: str) -> tuple[str, Series, str | int, float] | None:
    """Return the name of a sample, its series, what it counts and the number; None where it is none of ours."""
    if line.lstrip().startswith("#") or _OURS.search(line) is None:
        return None
    if not line.endswith(("\n", "\r")):
        raise ValueError("found an end within a line, expected the whole text")
    line = line.strip()
    if len(line) > MAX_LINE:
        raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        raise ValueError(f"found {line[:60]!r}, expected name{{labels}} value")
    name, labels, value = sample[1], (sample[2] or "").strip(), sample[3]
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key: str | int = match[2] or _KEYS[match[3]]
    number = _count(name, value, whole=key not in (_AVERAGE, _CREATED))
    pairs = _LABEL.findall(labels)
    tags = dict(pairs)
    if not _LABELS.fullmatch(labels) or len(tags) < len(pairs):
        raise ValueError(f'found labels {labels[:60]!r}, expected name="value" pairs, each once')
    model = tags.pop("model_name", "")
    if key == "accepted_tokens_per_pos":
        position = tags.pop("position", "")
        if not re.fullmatch(r"\d{1,4}", position, re.ASCII) or int(position) >= MAX_POSITIONS:
            raise ValueError(f"found position {position[:20]!r}, expected 0 to {MAX_POSITIONS - 1}")
        key = int(position)
    if key == "requests":
        tags.pop("finished_reason", None)
    return name, Series(_engine(match[1]), model, tuple(sorted(tags.items()))), key, number


def _engine(prefix: str) -> str:
    plain = prefix.lower().replace("_", "").replace(".", "")
    named = {"vllm": VLLM, "llamacpp": LLAMA_CPP, "sglang": SGLANG}
    return next((engine for part, engine in named.items() if part in plain), prefix[:40] or "unknown")


def _count(name: str, text: str, *, whole: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_COUNT or (whole and value != int(value)):
        what = "a count" if whole else "a number from 0"
        raise ValueError(f"found {name} = {text[:20]}, expected {what}")
    return value


def _wanted(reading: Reading, engine: str, model: str | None) -> Reading:
    """Leave out engines and models that are not wanted, and refuse a mixture."""
    asked = {
        series: values
        for series, values in reading.items()
        if engine in ("auto", series.engine) and model in (None, series.model)
    }
    speculating = {series: values for series, values in asked.items() if values.keys() - {"tokens", "requests"}}
    speculating = speculating or asked  # a server that answers and has no draft, or has none yet
    for what in ("engine", "model"):
        names = sorted({getattr(series, what) for series in speculating})
        if len(names) > 1:
            listed = ", ".join(names)[:80]
            raise ValueError(f"found {what}s {listed}, expected one: say which {what} (--{what})")
    return speculating


def _named(series: Series) -> str:
    tags = ", ".join(f"{name} {value}" for name, value in series.replica)[:60]
    return tags or series.engine
