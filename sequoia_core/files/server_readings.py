"""Read what a server said of its speculative decoding, whatever kind of file or text it is.

Which reader fits shows in the content: JSON, Prometheus text, a table with rates by position, or a log.
"""

from __future__ import annotations

import re
from pathlib import Path

from .prometheus_metrics import MAX_METRICS_BYTES, counts_between, looks_like_metrics
from .safe_files import kind_of, read_bytes
from .server_counts import ENGINES, ServerCounts
from .server_records import counts_of_answers, counts_of_log, counts_of_table

MAX_READING_BYTES = 64 * 2**20


def load_counts(
    after: str | Path, before: str | Path | None = None, *, engine: str = "auto", model: str | None = None
) -> ServerCounts:
    """Read one file, or the difference of two readings of metrics; see `counts_from_bytes`."""
    files = [None if path is None else read_bytes(path, limit=MAX_READING_BYTES) for path in (after, before)]
    assert files[0] is not None
    return counts_from_bytes(files[0], str(after), files[1], str(before), engine=engine, model=model)


def counts_from_bytes(
    after: bytes,
    name: str,
    before: bytes | None = None,
    before_name: str = "before",
    *,
    engine: str = "auto",
    model: str | None = None,
) -> ServerCounts:
    """Read what a server counted: metrics, answers as JSON, `acceptance.csv`, or a log.

    Args:
        name, before_name: for errors.
        before: an earlier reading of metrics, to be subtracted; only metrics have one.
        engine: which one wrote it; "auto" finds out, another name refuses what is not of it.

    Raises:
        ValueError: in one line, naming the file, what was found and what was expected.
    """
    if engine not in ("auto", *ENGINES):
        raise ValueError(f"engine: found {engine[:40]!r}, expected auto, {', '.join(ENGINES)}")
    then = None if before is None else _text(before, before_name)
    try:
        found = _counts(_text(after, ""), after, then, engine, model)
        if engine not in ("auto", found.engine):
            raise ValueError(f"found what {found.engine} writes, expected {engine}")
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix(': ')}") from error
    return found


def _counts(text: str, data: bytes, then: str | None, engine: str, model: str | None) -> ServerCounts:
    kind = kind_of(data)
    metrics = looks_like_metrics(text)
    if then is not None and not metrics:
        raise ValueError(f"found {kind} without metrics beside an earlier reading, expected two readings of metrics")
    if metrics and len(data) > MAX_METRICS_BYTES:
        raise ValueError(f"found {len(data):,} bytes of metrics, expected at most {MAX_METRICS_BYTES:,}")
    if metrics:
        return counts_between(text, then, engine=engine, model=model)
    if re.match(r"\s*(?:\{|\[\s*\{)", text):  # a log may begin with the time in brackets
        return counts_of_answers(data)
    if kind not in ("text", "JSON"):
        raise ValueError(f"found {kind}, expected metrics, answers, acceptance.csv or a log of a server")
    if "acceptance_at_pos_0" in text[:4096]:
        return counts_of_table(text)
    return counts_of_log(text)


def _text(data: bytes, name: str) -> str:
    if len(data) > MAX_READING_BYTES:
        raise ValueError(f"{name}: found {len(data):,} bytes, expected at most {MAX_READING_BYTES:,}")
    if b"\0" in data:
        raise ValueError(f"{name}: found binary data, expected text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: found bytes that are not UTF-8 at {error.start}, expected text") from error
