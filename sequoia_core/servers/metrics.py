"""Counters of speculative decoding in Prometheus text: of vLLM, llama.cpp's server and SGLang."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..files.gguf_header import LLAMA_CPP
from .counts import (
    MAX_COUNT,
    MAX_POSITIONS,
    SGLANG,
    VLLM,
    ServerCounts,
    Unrecognised,
    counts_of_one_k,
    notes_of_left_out,
    summed,
)

MAX_METRICS_BYTES = 16 * 2**20
MAX_OTHERS = 8  # names of other metrics that a message may show
MAX_LINE = 16_384  # characters
# Runs are never given back (++, *+): a run of spaces that fits nowhere would be tried from each of its places.
_SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*+)(?:\s*+\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?+"
    r"\s++([^\s{]\S*+)(?:\s++-?[\d.]++(?=\s|$))?+\s*+(?:#.*)?",  # the rest may be an exemplar
    re.ASCII,
)
_LABEL = re.compile(r'\s*+([a-zA-Z_]\w*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)', re.ASCII)
_COUNTER = re.compile(
    r"(.*?)[:_]?spec_decode_num_(drafts(?:_created)?|draft_tokens|accepted_tokens(?:_per_pos)?)(?:_total)?"
)
_TOKENS = {"generation_tokens_total": "tokens", "tokens_predicted_total": "tokens", "request_success_total": "requests"}
_AVERAGE = "spec_accept_length"
_OURS = re.compile("|".join(["spec_decode_num_", *_TOKENS, _AVERAGE]))
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
    line = r"^(?:# (?:HELP|TYPE) |[\w:]*spec_decode_num_|\w+:\w+(?:\{[^\n]*\})? [-+.\dEe]+$)"
    return re.search(line, text, re.MULTILINE | re.ASCII) is not None


def counts_between(after: str, before: str | None, *, engine: str = "auto", model: str | None = None) -> ServerCounts:
    """Return the counts between two readings, or since the server's start, of one of `ENGINES` or "auto"."""
    later, odd = _reading(after, engine, model)
    notes = []
    earlier: Reading = {}
    if before is None:
        notes.append("One reading: counts since the server's start, warm-up included.")
    else:
        earlier, more = _reading(before, engine, model, empty=True)
        odd += [f"the first reading, {line}" for line in more]
    if any(_AVERAGE in values for values in later.values()):
        return _averages(later, odd)
    parts = []
    for series, values in later.items():
        then = earlier.get(series, {})
        if _was_reset(then, values):
            notes.append(f"The counters of {_named(series)} began again between the readings: counted from there.")
            then = {}
        # an earlier reading may hold no draft yet, but tokens count from the start of a server
        kept = {name for name in values if not then or name in then or name not in _TOKENS.values()}
        try:
            parts.append(_counts(series, {name: values[name] - then.get(name, 0) for name in kept}, notes))
        except ValueError as error:
            raise ValueError(odd[0] if odd else str(error)) from error
    if earlier and not all(_CREATED in values for values in later.values()):
        notes.append(
            "The metrics lack the time of the server's start: if it began again between the readings and has counted "
            "past its first reading since, that would not be noticed."
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


def _counts(series: Series, total: Mapping[str | int, float], notes: list[str]) -> ServerCounts:
    positions = sorted(name for name in total if isinstance(name, int))
    if positions != list(range(1, len(positions) + 1)):
        raise ValueError(
            f"found positions {[position - 1 for position in positions][:8]}, expected 0, 1, 2, … without gaps"
        )
    known = {name: int(total[name]) for name in _KEPT if name in total}
    drafted = {"drafts", "draft_tokens", "accepted_tokens"}
    if (positions or drafted & set(known)) and (missing := sorted(drafted - set(known))):
        if known.get("drafts") != 0:
            raise ValueError(f"found no counter of {missing[0].replace('_', ' ')}, expected the whole text")
    known.setdefault("drafts", 0)
    if known["drafts"] and not positions:
        notes.append("No counts by position: totals alone, which say nothing of another k.")
    tokens = known.get("tokens")
    counts = ServerCounts(
        series.engine, "counters", known["drafts"], known.get("draft_tokens"), known.get("accepted_tokens"),
        tuple(int(total[position]) for position in positions), requests_done=known.get("requests"), model=series.model,
    )  # fmt: skip
    if tokens is not None and tokens < counts.fewest_tokens:
        notes.append(
            f"{tokens:,} tokens were left out, where these drafts make {counts.fewest_tokens:,} or more: the share "
            "of steps with a draft is unknown."
        )
        return counts
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
    parts = [ServerCounts(series.engine, "averages", mean_length=length, model=series.model) for length in drafted]
    return replace(summed(parts, "averages"), notes=(*notes, *notes_of_left_out(odd)))


def _reading(text: str, engine: str, model: str | None, *, empty: bool = False) -> tuple[Reading, list[str]]:
    """Return the counts of one reading, and what is wrong with lines left out.

    An `empty` reading may hold no counts yet, as before a server's first draft.
    """
    reading: Reading = {}
    others: list[str] = []
    odd: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if _OURS.search(line) is None:
            others += [re.split(r"[\s{]", line, maxsplit=1)[0]] * (len(others) < MAX_OTHERS)
            continue
        try:
            if number == len(lines) and not text.endswith(("\n", "\r")):
                raise ValueError("found an end within a line, expected the whole text")
            sample = _sample(line)
        except ValueError as error:
            odd.append(f"line {number}: {error}")
            continue
        if sample is None:
            others.append(re.split(r"[\s{]", line, maxsplit=1)[0])
            continue
        series, key, value = sample
        values = reading.setdefault(series, {})
        if key == "requests":  # by reason of ending
            value += values.get(key, 0)
        elif key in values:
            name = re.split(r"[\s{]", line, maxsplit=1)[0]
            raise ValueError(f"line {number}: found {name} twice, expected it once for each engine")
        values[key] = value
    if odd and not reading:
        raise ValueError(odd[0])
    return _wanted(reading, engine, model, others, empty), odd


def _sample(line: str) -> tuple[Series, str | int, float] | None:
    """Return the series of a sample, what it counts and the number; None where it is none of ours."""
    if len(line) > MAX_LINE:
        raise ValueError(f"found {len(line):,} characters, expected at most {MAX_LINE:,}")
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        raise ValueError(f"found {line[:60]!r}, expected name{{labels}} value")
    name, labels, value = sample[1], (sample[2] or "").strip(), sample[3]
    prefix, _, rest = name.partition(":") if ":" in name else ("", "", name)
    match = _COUNTER.fullmatch(name)
    key: str | int | None = _TOKENS.get(rest) or (rest if rest == _AVERAGE else None)
    if match is not None:
        prefix, key = match.groups()
    if key is None:
        return None
    number = _count(name, value, whole=key not in (_AVERAGE, _CREATED))
    tags: dict[str, str] = {}
    at = 0
    while at < len(labels):
        label = _LABEL.match(labels, at)
        if label is None or label[1] in tags:
            raise ValueError(f'found labels {labels[:60]!r}, expected name="value" pairs, each once')
        tags[label[1]], at = label[2], label.end()
    if key == "accepted_tokens_per_pos":
        position = tags.pop("position", "")
        if not re.fullmatch(r"\d{1,4}", position, re.ASCII) or int(position) >= MAX_POSITIONS:
            raise ValueError(f"found position {position[:20]!r}, expected 0 to {MAX_POSITIONS - 1}")
        key = int(position) + 1
    model = tags.pop("model_name", "")
    if key == "requests":
        tags.pop("finished_reason", None)
    return Series(_engine(prefix), model, tuple(sorted(tags.items()))), key, number


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
    if not speculating and reading:
        engines = ", ".join(sorted({series.engine for series in reading}))[:80]
        raise ValueError(f"found counters of {engines}, expected those of {engine}")
    if not speculating:
        raise Unrecognised(f"found {', '.join(dict.fromkeys(others))[:60] or 'nothing'}")
    for what, names in (("engine", {s.engine for s in speculating}), ("model", {s.model for s in speculating})):
        if len(names) > 1:
            listed = ", ".join(sorted(names))[:80]
            raise ValueError(f"found {what}s {listed}, expected one: say which {what} (--{what})")
    return speculating


def _was_reset(then: Mapping[str | int, float], now: Mapping[str | int, float]) -> bool:
    if then.get(_CREATED, math.inf) < now.get(_CREATED, -math.inf):
        return True
    return any(then[name] > now[name] for name in then.keys() & now.keys())


def _named(series: Series) -> str:
    tags = ", ".join(f"{name} {value}" for name, value in series.replica)[:60]
    return f"{series.engine} ({tags})" if tags else series.engine
