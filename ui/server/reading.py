"""The source of a server's counts: the shipped example, files, pasted text, or an address on this machine."""

from pathlib import Path
from typing import NamedTuple

import streamlit as st

from sequoia_core.acceptance.matrix_files import load_acceptance
from sequoia_extras.servers.chain_acceptance import ChainAcceptance
from sequoia_extras.servers.counts import ENGINES, MAX_POSITIONS, RATE_TYPES, ServerCounts
from sequoia_extras.servers.fitted_acceptance import plan_acceptance
from sequoia_extras.servers.flags import METHODS
from sequoia_extras.servers.metrics_address import allowed_hosts, read_metrics
from sequoia_extras.servers.readings import ReadOptions, read_counts
from sequoia_extras.servers.request_spread import exclude_collapse
from ui import controls
from ui.markdown import escaped, safe_name
from ui.session import shipped
from ui.session.state import state

READING_SOURCES = ("Example", "Files", "Paste", "Connect")
MAX_PASTED_CHARS = 2_000_000
EXAMPLE = "vLLM 0.32 on the demo pair: 16 greedy answers of 128 tokens, recorded step by step at K = 8"


class Reading(NamedTuple):
    """Unparsed readings, each (content, name).

    Attributes:
        after: the last reading, or the only one.
        before: the first reading, subtracted from the last; None without one.
        is_example: whether this is the recorded example.
        earlier: a reading from a different period, for comparison; None without one.
    """

    after: tuple[bytes, str]
    before: tuple[bytes, str] | None
    is_example: bool = False
    earlier: tuple[bytes, str] | None = None


def reading_section() -> Reading | None:
    """Draw the controls of the source and return the reading; None until there is one."""
    way = controls.source_picker("Source of the figures", READING_SOURCES, key="server_way")
    return {"Example": _example, "Files": _files, "Paste": _paste, "Connect": _connect}[way]()


def _example() -> Reading | None:
    folder = shipped.ASSETS / "servers"
    recorded = folder / "vllm-demo-pair.jsonl"
    examples = {EXAMPLE: recorded} if recorded.is_file() else {}
    examples |= {_title(path): path for path in sorted(folder.glob("*.json"))}
    if not examples:
        st.info("The example is missing from this installation: upload a file.", icon=":material/upload_file:")
        return None
    chosen = st.selectbox(
        "Example",
        list(examples),
        key="server_example",
        help="A recording made here, and published rates for draft heads trained for one target.",
    )
    path = examples[chosen]
    if path != recorded:
        words = "Measure your draft head by depth and rank on your own texts"
        controls.page_link(st, "draft", words, ":material/play_circle:", acceptance_way="Measure")
    return Reading((path.read_bytes(), path.name), None, is_example=path == recorded)


def _title(path: Path) -> str:
    """Return the title of a file of published rates."""
    meta = load_acceptance(path).meta
    return f"{meta['pair']}, {meta['data']}: published, rank 1 only (chains)"


def _files() -> Reading | None:
    left, middle, right = st.columns(3)
    after = left.file_uploader(
        "Last reading, or the only file",
        key="server_after",
        help="Metrics of vLLM, SGLang or llama.cpp's server (curl …/metrics), JSON answers (best: vLLM with "
        "--per-request-spec-decode-metrics detailed), a log, a benchmark report (vllm bench serve), or a file saved by "
        "this page.",
    )
    before = middle.file_uploader(
        "First reading (metrics only)",
        key="server_before",
        help="Metrics count from the server's start; with a first reading, only the difference is used.",
    )
    period = right.file_uploader(
        "Different period, for comparison",
        key="server_earlier",
        help="A file from before a change, or published rates for the same draft, to check whether acceptance is lower "
        "now.",
    )
    last, first, earlier = (
        None if each is None else (each.getvalue(), safe_name(each.name)) for each in (after, before, period)
    )
    return None if last is None else Reading(last, first, earlier=earlier)


def _paste() -> Reading | None:
    left, right = st.columns(2)
    after = left.text_area("Last reading", key="server_text_after", height=160, max_chars=MAX_PASTED_CHARS)
    before = right.text_area("First reading", key="server_text_before", height=160, max_chars=MAX_PASTED_CHARS)
    if not after.strip():
        return None
    # A text area drops the final newline, and a text without one would be treated as truncated.
    last, first = ((text + "\n").encode(errors="replace") for text in (after, before))
    return Reading((last, "pasted text"), (first, "first pasted text") if before.strip() else None)


def _connect() -> Reading | None:
    address = st.text_input(
        "Address",
        "http://127.0.0.1:8000/metrics",
        key="server_address",
        help="An address on this machine; other hosts must be listed in SEQUOIA_METRICS_HOSTS when the app starts.",
    )
    left, right = st.columns(2)
    for column, name, label in ((left, "first", "Read first"), (right, "last", "Read last")):
        if column.button(label, key=f"server_read_{name}", icon=":material/download:", width="stretch"):
            try:
                data = read_metrics(address, allowed=allowed_hosts())
            except ValueError as error:
                st.error(escaped(str(error)), icon=":material/error:")
            else:
                state().server_readings[name] = data
    readings = state().server_readings
    if "first" in readings and "last" not in readings:
        st.caption(":material/hourglass: First reading stored. Let the server answer requests, then read again.")
    if "last" not in readings:
        return None
    first = (readings["first"], "first reading") if "first" in readings else None
    return Reading((readings["last"], "last reading"), first)


class MissingFacts(NamedTuple):
    """Facts that may be missing from the files but known to the user."""

    engine: str
    model: str | None
    new_tokens: int | None
    draft_length: int | None
    method: str | None
    rates: str | None

    @property
    def options(self) -> ReadOptions:
        return ReadOptions(self.engine, self.model, self.rates, vectors=False)


def ask_missing() -> MissingFacts:
    """Draw the controls for facts that may be missing from the files, and return the given facts."""
    with st.expander("Details missing from the files", icon=":material/tune:", key="server_untold"):
        columns = st.columns(6)
        engine = columns[0].selectbox("Server", ("auto", *ENGINES), key="server_engine", help="Source of the files.")
        model = columns[1].text_input(
            "Model",
            key="server_model",
            max_chars=400,
            help="Needed if the server has several models or several drafters.",
        )
        tokens = columns[2].number_input(
            "New tokens per answer",
            1,
            10**9,
            None,
            placeholder="unknown",
            key="server_new_tokens",
            help="Needed if per-step records lack it, because the last step may run past the end.",
        )
        method = columns[3].selectbox(
            "Draft by",
            METHODS,
            None,
            placeholder="detected from the counts",
            key="server_method",
            help="A model, an EAGLE-3 head, the target's MTP layers, a DFlash head, or n-grams. N-grams need no draft "
            "passes and are assumed if few steps have a draft.",
        )
        rates = columns[4].selectbox(
            "Rates are",
            RATE_TYPES,
            None,
            placeholder="detected automatically",
            key="server_rates",
            help="For per-position or published rates only: survival is the fraction of all drafts, conditional is the "
            "fraction of those accepted at the position before.",
        )
        length = columns[5].number_input(
            "Draft length K",
            1,
            MAX_POSITIONS,
            None,
            placeholder="unknown",
            key="server_draft_length",
            help="Needed if the source contains only averages.",
        )
    return MissingFacts(engine, model.strip() or None, tokens, length, method, rates)


@st.cache_resource(max_entries=4, show_spinner="Reading…")
def cached_counts(reading: Reading, options: ReadOptions) -> ServerCounts:
    """Return the counts in a reading."""
    before, _ = reading.before or (None, "")
    after, name = reading.after
    return read_counts(after, name, before, options=options)


def earlier_counts(reading: Reading, options: ReadOptions) -> ServerCounts | None:
    """Return the counts of the earlier period or else of the first reading; None if nothing was drafted."""
    options = options._replace(rates=None)
    if reading.earlier is not None:
        return cached_counts(Reading(reading.earlier, None), options)
    if reading.before is None:
        return None
    try:
        counts = cached_counts(Reading(reading.before, None), options)
    except ValueError:  # raised if the server had no counters yet
        return None
    return counts if counts.drafts else None


@st.cache_resource(max_entries=4, show_spinner="Replaying…")
def cached_chains(_counts: ServerCounts, reading: Reading, facts: MissingFacts) -> ChainAcceptance:
    """Return the chain acceptance; the arguments after `_counts` are the cache key."""
    known = exclude_collapse(_counts)
    return plan_acceptance(known, new_tokens=facts.new_tokens, draft_length=facts.draft_length)
