"""Read a server's counts of speculative decoding: JSON, Prometheus text, rates by position, or a log."""

import re
from dataclasses import replace

from ..design.acceptance import AcceptanceVector
from ..design.matrix_files import acceptance_from_bytes
from ..files.file_kinds import decode_text, describe, kind_of
from ..files.number_tables import number_column
from ..files.safe_files import read_json
from .chain_acceptance import MATCH, counts_of_matrix, counts_of_vector, other_rule_note
from .counts import ENGINES, ServerCounts, Unrecognised
from .logs import counts_of_log
from .metrics import counts_between, looks_like_metrics
from .records import counts_of_answers, counts_of_rates

MAX_READING_BYTES = 64 * 2**20
MAX_RATES_BYTES = 2**16
EXPECTED = (
    "metrics, a log or answers that count of vLLM, llama.cpp's server or SGLang, or rates by position from 0 to 1"
)


def read_counts(
    data: bytes,
    name: str,
    before: bytes | None = None,
    *,
    engine: str = "auto",
    model: str | None = None,
    rates: str | None = None,
    rule: str | None = None,
    vectors: bool = True,
) -> ServerCounts:
    """Read a server's counts: metrics, answers as JSON, a log, or rates by position alone.

    Also read is a matrix that was saved of such counts, and what a measured vector implies.

    Args:
        name: for errors.
        before: an earlier reading of metrics, to be subtracted; only metrics have one.
        engine: which one wrote it; "auto" finds out, another name refuses what is not of it.
        model: which of several models, or of several drafters in a log.
        rates: what rates by position are; see `counts_of_rates`.
        rule: how the server accepts, for a vector alone; see `counts_of_vector`.
        vectors: whether a vector is welcome.
    """
    if engine not in ("auto", *ENGINES):
        raise ValueError(f"engine: found {engine[:40]!r}, expected auto, {', '.join(ENGINES)}")
    named = "unknown" if engine == "auto" else engine
    if before is None and b'"sequoia-acceptance"' in data[:4096]:
        saved = acceptance_from_bytes(data, name if vectors else f"{name}.json")
        if isinstance(saved, AcceptanceVector):
            if not vectors:
                raise ValueError(f"{name}: found a vector of ranks, expected what a server counted; open it on Draft")
            counts = counts_of_vector(saved, named, rule or MATCH)
            return replace(counts, notes=tuple(filter(None, [other_rule_note(saved, rule or MATCH)])))
        if rule is None:
            return counts_of_matrix(saved, rates)
    if rule is not None:
        raise ValueError(f"--rule: found {rule[:40]!r} for what a server counted, expected it for a vector alone")
    try:
        numbers = _bare_numbers(data) if before is None else None
        if numbers is not None:
            counts = counts_of_rates(numbers, rates, engine=named)
        elif rates is not None:
            raise ValueError("found more than rates by position, expected those alone for --rates")
        else:
            counts = _counts(data, before, engine, model)
        if model not in (None, counts.model, counts.drafter):
            found = (counts.model or counts.drafter or "a model without a name")[:80]
            raise ValueError(f"--model: found counts of {found}, expected {model[:40]!r}")
    except Unrecognised as error:
        form = describe(data)
        found = str(error) if form in ("text", "JSON") else f"found {form}"
        raise ValueError(f"{name}: {found}, expected {EXPECTED}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if engine not in ("auto", counts.engine):
        raise ValueError(f"{name}: found what {counts.engine} writes, expected {engine}")
    return counts


def _counts(data: bytes, before: bytes | None, engine: str, model: str | None) -> ServerCounts:
    text = _text(data)
    then = None if before is None else _text(before)
    metrics = looks_like_metrics(text)
    if then is not None and not metrics:
        raise ValueError(f"found {describe(data)} with an earlier reading, expected two readings of metrics")
    if then is not None and not looks_like_metrics(then):
        raise ValueError("the earlier reading: found no metrics, expected two readings of metrics")
    if metrics:
        return counts_between(text, then, engine=engine, model=model)
    if re.match(r"\s*(?:\{|\[\s*\{)", text):  # a log may begin with the time in brackets
        return counts_of_answers(text.encode(), model)
    return counts_of_log(text, model)


def _bare_numbers(data: bytes) -> list[float] | None:
    """Return the numbers of a file that holds nothing else: one column, positions beside them, or a JSON list."""
    if len(data) > MAX_RATES_BYTES:
        return None
    try:
        if kind_of(data) == "text":
            return number_column(data).values
        listed = read_json(data)
    except ValueError:
        return None
    numbers = isinstance(listed, list) and listed and all(type(value) in (int, float) for value in listed)
    return listed if numbers else None


def _text(data: bytes) -> str:
    if len(data) > MAX_READING_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_READING_BYTES:,}")
    text = decode_text(data, "metrics, answers or a log of a server")
    if "\0" in text:
        raise ValueError("found binary data, expected text")
    return text
