"""Rewrite a printout of vLLM's `LLM.get_metrics()`, or AIPerf's server metrics, as Prometheus text."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sequoia_core.files.safe_files import read_json

from .counts import as_dict

_START = re.compile(r"\b(?=(?:Counter|Gauge|Vector|Histogram)\(name=['\"]vllm:)")
_QUOTED = r"'(?:[^'\\\n]|\\.)*+'|\"(?:[^\"\\\n]|\\.)*+\""
_COUNTER = re.compile(
    rf"(?:Counter|Vector)\(name=.(\w++:\w++).,\s*+labels=\{{((?:[^'\"}}]|{_QUOTED})*+)\}},\s*+"
    r"values?=(\[[\d\s,]*+\]|\d++)\)",
    re.ASCII,
)
_LABEL = re.compile(rf"({_QUOTED})\s*+:\s*+({_QUOTED})")


def is_printout(text: str) -> bool:
    """Return whether a text contains metrics printed by `LLM.get_metrics()`."""
    return _START.search(text) is not None


def printout_metrics(text: str) -> str:
    """Return the counters of a printout as Prometheus text."""
    lines: list[str] = []
    for counter in filter(None, map(_COUNTER.match, _START.split(text))):
        name, labels, values = counter.groups()
        tags = {key[1:-1]: value[1:-1] for key, value in _LABEL.findall(labels)}
        lines += _samples(name, tags, re.findall(r"\d+", values), is_vector=values.startswith("["))
    if not any("spec_decode" in line for line in lines):
        raise ValueError("found a printout of metrics without counters of speculative decoding: was it enabled?")
    return "".join(lines)


def aiperf_metrics(text: str) -> str:
    """Return AIPerf's server metrics (server_metrics_export.json), which cover one run, as Prometheus text."""
    lines: list[str] = []
    for name, metric in as_dict(as_dict(read_json(text.encode())).get("metrics")).items():
        listed = as_dict(metric).get("series")
        for series in map(as_dict, listed if isinstance(listed, list) else []):
            stats = as_dict(series.get("stats"))
            labels = as_dict(series.get("labels")) | {"endpoint": series.get("endpoint_url", "")}
            if "total" in stats:
                lines += _samples(name, labels, [stats["total"]])
            elif "avg" in stats:
                lines.append(_sample(name, labels, stats["avg"]))
    return "".join(lines)


def _samples(name: str, labels: Mapping[str, Any], values: Sequence[Any], *, is_vector: bool = False) -> Iterator[str]:
    """Yield the sample of a counter, or of the counters of every position."""
    name = f"{name.removesuffix('_total')}_total"
    for position, value in enumerate(values):
        yield _sample(name, {**labels, "position": position} if is_vector else labels, value)


def _sample(name: str, labels: Mapping[str, Any], value: Any) -> str:
    tags = ",".join(f"{key}={json.dumps(str(label), ensure_ascii=False)}" for key, label in labels.items())
    return f"{name}{{{tags}}} {value}\n"
