"""Read a server's speculative decoding counts from metrics, benchmark reports, answers, logs or per-position rates.

`READERS` lists the forms of text that are read; the first reader that claims a text parses it.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from sequoia_core.acceptance.matrix_files import acceptance_from_bytes
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.file_types import decode_text, describe, file_type
from sequoia_core.files.number_tables import number_column
from sequoia_core.files.safe_files import read_json

from .bench_reports import is_json_report, is_report, parse_json_reports, parse_reports
from .chain_acceptance import MATCH, counts_from_matrix, counts_from_vector, other_rule_note
from .counts import ENGINES, SGLANG, ServerCounts, UnrecognisedError, as_dict
from .logs import LINE_PARSERS, parse_server_log
from .metric_printouts import aiperf_metrics, is_printout, printout_metrics
from .metrics import average_over_ranks, is_metrics, parse_metrics
from .records import counts_from_rates, parse_answers

MAX_READING_BYTES = 64 * 2**20
MAX_RATES_BYTES = 2**16
EXPECTED_SOURCE = (
    "metrics, a log, answers with counts or a benchmark report of vLLM, llama.cpp's server, SGLang or mlx-vlm, or "
    "per-position rates from 0 to 1"
)


class ReadOptions(NamedTuple):
    """Options for reading a source.

    Attributes:
        engine: engine that wrote the source; "auto" detects it, and any other name rejects sources from other engines.
        model: one of several models, of several drafters in a log, or of several reports; None if there is only one.
        rates: type of per-position rates; see `counts_from_rates`.
        rule: the server's acceptance rule, only for vectors; see `counts_from_vector`.
        vectors: whether a measured vector is accepted.
    """

    engine: str = "auto"
    model: str | None = None
    rates: str | None = None
    rule: str | None = None
    vectors: bool = True

    @property
    def named_engine(self) -> str:
        return "unknown" if self.engine == "auto" else self.engine


DEFAULT_OPTIONS = ReadOptions()


def read_counts(
    data: bytes, name: str, before: bytes | None = None, *, options: ReadOptions = DEFAULT_OPTIONS
) -> ServerCounts:
    """Read a server's counts from metrics, JSON answers, a log, or per-position rates.

    Also reads saved matrices of such counts and measured vectors.

    Args:
        name: name of the source in error messages.
        before: earlier reading of the same metrics to subtract; None for counts since the server's start.
    """
    if options.engine not in ("auto", *ENGINES):
        raise ValueError(f"engine: found {options.engine[:40]!r}, expected auto, {', '.join(ENGINES)}")
    if before is None and b'"sequoia-acceptance"' in data[:4096]:
        counts = _read_acceptance(data, name, options)
        if counts is not None:
            return counts
    if options.rule is not None:
        raise ValueError(f"--rule: found {options.rule[:40]!r} with a server's counts, expected it only with a vector")
    try:
        counts = _read_source(data, before, options)
    except UnrecognisedError as error:
        form = describe(data)
        found = str(error) if form in ("text", "JSON") else f"found {form}"
        raise ValueError(f"{name}: {found}, expected {EXPECTED_SOURCE}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if options.engine not in ("auto", counts.engine):
        raise ValueError(f"{name}: found output from {counts.engine}, expected {options.engine}")
    return counts


def _read_acceptance(data: bytes, name: str, options: ReadOptions) -> ServerCounts | None:
    """Return the counts in a saved matrix or vector; None for a matrix if a rule is given."""
    saved = acceptance_from_bytes(data, name if options.vectors else f"{name}.json")
    if not isinstance(saved, AcceptanceVector):
        return counts_from_matrix(saved, options.rates) if options.rule is None else None
    if not options.vectors:
        raise ValueError(f"{name}: found an acceptance vector, expected a server's counts; open it on the Draft page")
    rule = options.rule or MATCH
    note = other_rule_note(saved, rule)
    return replace(counts_from_vector(saved, options.named_engine, rule), notes=(note,) if note else ())


def _read_source(data: bytes, before: bytes | None, options: ReadOptions) -> ServerCounts:
    numbers = _bare_numbers(data) if before is None else None
    if numbers is not None:
        counts = counts_from_rates(numbers, options.rates, engine=options.named_engine)
    elif options.rates is not None:
        raise ValueError("--rates: found a different source, expected only per-position rates")
    else:
        counts = _parse_text(data, before, options)
    if options.model not in (None, counts.model, counts.drafter, counts.source):
        found = (counts.model or counts.drafter or "an unnamed model")[:80]
        raise ValueError(f"--model: found counts of {found}, expected {options.model[:40]!r}")  # type: ignore[index]
    return counts


class TextReader(NamedTuple):
    """A form of text that contains counts.

    Attributes:
        form: what a text of this form is, for error messages.
        sample: part of such a text, to name the form that an unrecognised text is nearest to.
        claims: whether a text has this form.
        parse: returns the counts in a text, less those in an earlier text.
        subtracts: whether an earlier text can be subtracted.
    """

    form: str
    sample: str
    claims: Callable[[str], bool]
    parse: Callable[[str, str | None, ReadOptions], ServerCounts]
    subtracts: bool = False


def _parse_metrics(text: str, earlier: str | None, options: ReadOptions) -> ServerCounts:
    return parse_metrics(text, earlier, engine=options.engine, model=options.model)


def _parse_printout(text: str, earlier: str | None, options: ReadOptions) -> ServerCounts:
    return _parse_metrics(printout_metrics(text), None if earlier is None else printout_metrics(earlier), options)


def _parse_server_info(text: str, _: str | None, options: ReadOptions) -> ServerCounts:
    states = as_dict(read_json(text.encode())).get("internal_states")
    known = [as_dict(state).get("avg_spec_accept_length") for state in states] if isinstance(states, list) else []
    lengths = [float(length) if isinstance(length, int | float) else 0.0 for length in known]
    if not any(lengths):
        raise UnrecognisedError("found SGLang's server info without averages of speculative decoding")
    return average_over_ranks(lengths, SGLANG)


def _is_json(text: str) -> bool:
    return re.match(r"\s*(?:\{|\[\s*\{)", text) is not None  # a log line may begin with a time in brackets


def _has_key(*keys: str) -> Callable[[str], bool]:
    """Return a test for JSON objects with all of these keys; quotes within strings are escaped."""
    return lambda text: _is_json(text) and all(re.search(f'"{key}"\\s*:', text) for key in keys)


READERS = (
    TextReader("Prometheus metrics", "vllm:spec_decode_num_drafts_total", is_metrics, _parse_metrics, subtracts=True),
    TextReader(
        "a printout of LLM.get_metrics()",
        "Counter(name='vllm:spec_decode_num_drafts', labels={}, value=1)",
        is_printout,
        _parse_printout,
        subtracts=True,
    ),
    TextReader(
        "AIPerf's server metrics",
        '"spec_decode_num_drafts": {"series": [{"stats": {"total": 1}}]}',
        _has_key("metrics", "series", "stats"),
        # The totals of a run need no earlier reading; an empty one says so.
        lambda text, _, options: _parse_metrics(aiperf_metrics(text), "", options),
    ),
    TextReader(
        "SGLang's server info",
        '"internal_states": [{"avg_spec_accept_length": 1}]',
        _has_key("internal_states"),
        _parse_server_info,
    ),
    TextReader(
        "a benchmark's JSON results",
        '"spec_decode_num_drafts", "spec_decode_acceptance_length"',
        lambda text: _is_json(text) and is_json_report(text),
        lambda text, _, options: parse_json_reports(text, options.model),
    ),
    TextReader(
        "JSON answers",
        '"timings": {"draft_n", "draft_n_accepted"}, "meta_info": {"spec_verify_ct"}',
        _is_json,
        lambda text, _, options: parse_answers(text.encode(), options.model),
    ),
    TextReader(
        "a benchmark report",
        "Speculative Decoding Acceptance rate (%): Acceptance length: Per-position acceptance (%):",
        is_report,
        lambda text, _, options: parse_reports(text, options.model),
    ),
    TextReader(
        "a log",
        "SpecDecoding metrics: Accepted: Drafted: Per-position acceptance rate: draft acceptance, accept len:",
        lambda text: any(mark in text for mark in LINE_PARSERS),
        lambda text, _, options: parse_server_log(text, options.model),
    ),
)


def _parse_text(data: bytes, before: bytes | None, options: ReadOptions) -> ServerCounts:
    text = _decode(data)
    earlier = None if before is None else _decode(before)
    reader = next((reader for reader in READERS if reader.claims(text)), None)
    if earlier is not None and not (reader and reader.subtracts):
        raise ValueError(f"found {describe(data)} with an earlier reading, expected two readings of metrics")
    if earlier is not None and reader and not reader.claims(earlier):
        raise ValueError("the earlier reading: found no metrics, expected two readings of metrics")
    if reader is None:
        raise UnrecognisedError(f"found no line about speculative decoding{_nearest_form(text)}")
    return reader.parse(text, earlier, options)


def _nearest_form(text: str) -> str:
    """Return a remark on the form that shares the most words with a text; empty if none shares two."""
    words = _words(text[:MAX_RATES_BYTES])
    shared = [(len(words & _words(reader.sample)), reader.form) for reader in READERS]
    most, form = max(shared, key=lambda pair: pair[0])
    return f" (most like {form})" if most > 1 else ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]\w+", text.lower()))


def _bare_numbers(data: bytes) -> list[float] | None:
    """Return the numbers if a file contains nothing else: a column, with or without positions, or a JSON list."""
    if len(data) > MAX_RATES_BYTES:
        return None
    try:
        if file_type(data) == "text":
            column = number_column(data)
            return None if column.percent else column.values
        listed = read_json(data)
    except ValueError:
        return None
    is_numbers = isinstance(listed, list) and listed and all(type(value) in (int, float) for value in listed)
    return listed if is_numbers else None


def _decode(data: bytes) -> str:
    if len(data) > MAX_READING_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_READING_BYTES:,}")
    text = decode_text(data, "a server's metrics, answers or log")
    if "\0" in text:
        raise ValueError("found binary data, expected text")
    return text
