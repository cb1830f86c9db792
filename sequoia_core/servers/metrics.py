"""Counters of speculative decoding in Prometheus text: of vLLM, llama.cpp's server and SGLang."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..files.gguf_header import LLAMA_CPP
from .counts import MAX_COUNT, MAX_POSITIONS, SGLANG, VLLM, ServerCounts

MAX_METRICS_BYTES = 16 * 2**20
MAX_OTHERS = 8  # names of other metrics that a message may show
EXPECTED = "metrics of vLLM, llama.cpp's server (started with --metrics) or SGLang with speculative decoding"
MAX_LINE = 16_384  # characters
# Runs are never given back (++, *+): a run of spaces that fits nowhere would be tried from each of its places.
_SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*+)(?:\s*+\{(.*)\})?+\s++([^\s{]\S*+)(?:\s++-?\d++(?=\s|$))?+\s*+(?:#.*)?", re.ASCII
)
_LABEL = re.compile(r'\s*+([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)', re.ASCII)
_COUNTER = re.compile(
    r"(.*?)[:_]?spec_decode_num_(drafts(?:_created)?|draft_tokens|accepted_tokens(?:_per_pos)?)(?:_total)?"
)
_TOKENS = {"generation_tokens_total": "tokens", "tokens_predicted_total": "tokens", "request_success_total": "requests"}
_AVERAGES = ("spec_accept_length", "spec_accept_rate")
_OURS = re.compile("|".join(["spec_decode_num_", *_TOKENS, *_AVERAGES]))
_CREATED = "drafts_created"  # a time, of Prometheus' own; in llama.cpp's metrics there is none
_KEPT = ("drafts", "draft_tokens", "accepted_tokens", "tokens", "requests")


class Series(NamedTuple):
    """One engine of one model: what is summed, and what is reset together."""

    engine: str
    model: str
    replica: tuple[tuple[str, str], ...]


Reading = dict[Series, dict[str | int, float]]  # of each series: count name, or position from 1 -> value


def looks_like_metrics(text: str) -> bool:
    """Whether a text has lines of Prometheus' format."""
    return re.search(r"^(?:# (?:HELP|TYPE) |[\w:]*spec_decode_num_)", text, re.MULTILINE | re.ASCII) is not None


def counts_between(after: str, before: str | None, *, engine: str = "auto", model: str | None = None) -> ServerCounts:
    """Return the counts between two readings, or since the server's start, of one of `ENGINES` or "auto"."""
    later = _reading(after, engine, model)
    if any(name in _AVERAGES for values in later.values() for name in values):
        return _averages(later)
    notes = []
    if before is None:
        earlier: Reading = {}
        notes.append("One reading: counts since the server's start, warm-up included.")
    else:
        earlier = _reading(before, engine, model, empty=True)
    total: dict[str | int, float] = {}
    for series, values in later.items():
        then = earlier.get(series, {})
        if _was_reset(then, values):
            notes.append(f"The counters of {_named(series)} began again between the readings: counted from there.")
            then = {}
        for name, value in values.items():
            total[name] = total.get(name, 0) + value - then.get(name, 0)
    if earlier and len(later) > 1 and not all(_CREATED in values for values in later.values()):
        notes.append(
            f"{len(later)} engines without the times of their start: one that began again between the readings and has "
            "counted past its first since would not be noticed."
        )
    gone = [series for series in earlier if series not in later]
    if gone:
        notes.append(f"{_named(gone[0])} is in the first reading alone: what it counted since is missing.")
    if len(later) > 1:
        notes.append(f"{len(later)} engines, summed.")
    return _counts(next(iter(later)), total, notes)


def _counts(series: Series, total: Mapping[str | int, float], notes: list[str]) -> ServerCounts:
    positions = sorted(name for name in total if isinstance(name, int))
    if positions != list(range(1, len(positions) + 1)):
        raise ValueError(
            f"found positions {[position - 1 for position in positions][:8]}, expected 0, 1, 2, … without gaps"
        )
    known = {name: int(total[name]) for name in _KEPT if name in total}
    known.setdefault("drafts", 0)
    if known["drafts"] and not {"draft_tokens", "accepted_tokens"} <= set(known):
        raise ValueError("found drafts without draft tokens or accepted tokens, expected the whole text")
    if known["drafts"] and not positions:
        notes.append("No counts by position: totals alone, which say nothing of another k.")
    return ServerCounts(
        series.engine, "counters", known["drafts"], known.get("draft_tokens"), known.get("accepted_tokens"),
        tuple(int(total[position]) for position in positions), known.get("tokens"), known.get("requests"),
        model=series.model, notes=tuple(notes),
    )  # fmt: skip


def _averages(later: Reading) -> ServerCounts:
    lengths = [values["spec_accept_length"] for values in later.values() if "spec_accept_length" in values]
    if not lengths:
        raise ValueError("found spec_accept_rate alone, expected spec_accept_length too")
    series, mean = next(iter(later)), sum(lengths) / len(lengths)
    if not mean >= 1:
        raise ValueError(f"spec_accept_length: found {mean:g}, expected 1 or more tokens per step")
    notes = ["SGLang's gauges are averages of its last steps: no counts, no positions, and so no interval."]
    notes += [f"{len(lengths)} ranks, averaged."] if len(lengths) > 1 else []
    return ServerCounts(series.engine, "averages", mean_length=mean, model=series.model, notes=tuple(notes))


def _reading(text: str, engine: str, model: str | None, *, empty: bool = False) -> Reading:
    """Return the counts of one reading; an `empty` one may hold none yet, as before a server's first draft."""
    reading: Reading = {}
    others: list[str] = []
    if "spec_decode_num_" in text[text.rfind("\n") + 1 :]:
        raise ValueError("found an end within a line, expected the whole text")
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MAX_LINE:
            raise ValueError(f"line {number}: found {len(line):,} characters, expected at most {MAX_LINE:,}")
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if _OURS.search(line) is None:
            others += [re.split(r"[\s{]", line, maxsplit=1)[0]] * (len(others) < MAX_OTHERS)
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            if "spec_decode_num_" in line:
                raise ValueError(f"line {number}: found {line[:60]!r}, expected name{{labels}} value")
            continue
        name, labels, value = match.groups()
        sample = _sample(name, labels or "", number)
        if sample is None:
            others.append(name)
            continue
        series, key = sample
        values = reading.setdefault(series, {})
        if key == "requests":  # by reason of ending
            values[key] = values.get(key, 0) + _count(name, value, number)
        elif key in values:
            raise ValueError(f"line {number}: found {name} twice, expected it once for each engine")
        else:
            values[key] = _count(name, value, number, whole=key not in (*_AVERAGES, _CREATED))
            if key == "spec_accept_rate" and values[key] > 1:
                raise ValueError(f"line {number}: found {name} = {value[:20]}, expected a rate from 0 to 1")
    return _wanted(reading, engine, model, others, empty)


def _sample(name: str, labels: str, number: int) -> tuple[Series, str | int] | None:
    """Return the series of a sample and what it counts; None where it is none of ours."""
    prefix, _, rest = name.partition(":") if ":" in name else ("", "", name)
    match = _COUNTER.fullmatch(name)
    key: str | int | None = _TOKENS.get(rest) or (rest if rest in _AVERAGES else None)
    if match is not None:
        prefix, key = match.groups()
    if key is None:
        return None
    tags: dict[str, str] = {}
    at, labels = 0, labels.strip()
    while at < len(labels):
        label = _LABEL.match(labels, at)
        if label is None or label[1] in tags:
            raise ValueError(f'line {number}: found labels {labels[:60]!r}, expected name="value" pairs, each once')
        tags[label[1]], at = label[2], label.end()
    if key == "accepted_tokens_per_pos":
        position = tags.pop("position", "")
        if not re.fullmatch(r"\d{1,4}", position, re.ASCII) or int(position) >= MAX_POSITIONS:
            raise ValueError(f"line {number}: found position {position[:20]!r}, expected 0 to {MAX_POSITIONS - 1}")
        key = int(position) + 1
    model = tags.pop("model_name", "")
    if key == "requests":
        tags.pop("finished_reason", None)
    return Series(_engine(prefix), model, tuple(sorted(tags.items()))), key


def _engine(prefix: str) -> str:
    plain = prefix.lower().replace("_", "").replace(".", "")
    named = {"vllm": VLLM, "llamacpp": LLAMA_CPP, "sglang": SGLANG}
    return next((engine for part, engine in named.items() if part in plain), prefix[:40] or "unknown")


def _count(name: str, text: str, number: int, *, whole: bool = True) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_COUNT or (whole and value != int(value)):
        what = "a count" if whole else "a number from 0"
        raise ValueError(f"line {number}: found {name} = {text[:20]}, expected {what}")
    return value


def _wanted(reading: Reading, engine: str, model: str | None, others: list[str], empty: bool) -> Reading:
    """Leave out engines and models that are not wanted, and refuse a mixture."""
    asked = {
        series: values
        for series, values in reading.items()
        if engine in ("auto", series.engine) and model in (None, series.model)
    }
    speculating = {series: values for series, values in asked.items() if values.keys() - {"tokens", "requests"}}
    speculating = speculating or asked  # a server that answers and has no draft, or has none yet
    if not speculating and empty:
        return {}
    models = {series.model for series in reading}
    if not speculating and model is not None and model not in models:
        raise ValueError(f"model: found {', '.join(sorted(models))[:80] or 'none'}, expected {model[:40]!r} among them")
    if not speculating:
        first = ", ".join(dict.fromkeys(others))[:60]
        if reading and others:
            first = "no counters of speculative decoding" + ("" if engine == "auto" else f" of {engine}")
        raise ValueError(f"found {first or 'nothing'}, expected {EXPECTED}")
    for what, names in (("engines", {s.engine for s in speculating}), ("models", {s.model for s in speculating})):
        if len(names) > 1:
            raise ValueError(f"found {what} {', '.join(sorted(names))[:80]}, expected one: say which {what[:-1]}")
    return speculating


def _was_reset(then: Mapping[str | int, float], now: Mapping[str | int, float]) -> bool:
    if then.get(_CREATED, math.inf) < now.get(_CREATED, -math.inf):
        return True
    return any(value > now.get(name, 0) for name, value in then.items())


def _named(series: Series) -> str:
    tags = ", ".join(f"{name} {value}" for name, value in series.replica)[:60]
    return f"{series.engine} ({tags})" if tags else series.engine
