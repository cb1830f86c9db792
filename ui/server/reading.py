"""Where a server's figures come from: the shipped example, files, pasted text, or an address of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from sequoia_core.design.matrix_files import load_acceptance
from sequoia_core.servers.chain_acceptance import ChainAcceptance, chain_acceptance
from sequoia_core.servers.counts import ENGINES, RATES
from sequoia_core.servers.flags import METHODS
from sequoia_core.servers.metrics_address import allowed_hosts, read_metrics
from sequoia_core.servers.readings import read_counts
from sequoia_core.servers.request_spread import steady
from ui import controls
from ui.markdown import escaped, safe_name
from ui.session import shipped
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core.servers.counts import ServerCounts

WAYS = ("Example", "Files", "Paste", "Connect")
MAX_PASTED = 2_000_000  # characters
EXAMPLE = "vLLM 0.32 on the demo pair: 16 greedy answers of 128 tokens, recorded by step at K = 8"


class Reading(NamedTuple):
    """What was read, unparsed: (content, name) of the last reading, of the first and of another period, or None."""

    after: tuple[bytes, str]
    before: tuple[bytes, str] | None
    is_example: bool = False
    earlier: tuple[bytes, str] | None = None


def section() -> Reading | None:
    """Draw the choice of a source -> what was read; None before anything was."""
    way = controls.source_picker("Where the figures come from", WAYS, key="server_way")
    return {"Example": _example, "Files": _files, "Paste": _paste, "Connect": _connect}[way]()


def _example() -> Reading | None:
    folder = shipped.ASSETS / "servers"
    recorded = folder / "vllm-demo-pair.jsonl"
    examples = {EXAMPLE: recorded} if recorded.is_file() else {}
    examples |= {_title(path): path for path in sorted(folder.glob("*.json"))}
    if not examples:
        st.info("The example is missing from this installation: bring a file.", icon=":material/upload_file:")
        return None
    chosen = st.selectbox(
        "Example",
        list(examples),
        key="server_example",
        help="What was recorded here, and rates that others published of heads trained for one target.",
    )
    path = examples[chosen]
    if path != recorded:
        words = "Measure yours: a draft head by depth and rank, on your texts"
        controls.page_link(st, "draft", words, ":material/play_circle:", acceptance_way="Measure")
    return Reading((path.read_bytes(), path.name), None, is_example=path == recorded)


def _title(path: Path) -> str:
    """Say what published rates are of."""
    told = load_acceptance(path).meta
    return f"{told['pair']}, {told['data']}: published, rank 1 only (chains)"


def _files() -> Reading | None:
    left, middle, right = st.columns(3)
    after = left.file_uploader(
        "Last reading, or the only file",
        key="server_after",
        help="Metrics of vLLM, SGLang or llama.cpp's server (curl …/metrics), answers as JSON (best: vLLM with "
        "--per-request-spec-decode-metrics detailed), a log, or what this page saved.",
    )
    before = middle.file_uploader(
        "First reading (metrics alone)",
        key="server_before",
        help="Metrics count from the server's start; with an earlier reading only what lies between counts.",
    )
    period = right.file_uploader(
        "Another period, to compare with",
        key="server_earlier",
        help="A file from before something changed, or rates published of the same draft: is it worse now?",
    )
    last, first, earlier = (
        None if each is None else (each.getvalue(), safe_name(each.name)) for each in (after, before, period)
    )
    return None if last is None else Reading(last, first, earlier=earlier)


def _paste() -> Reading | None:
    left, right = st.columns(2)
    after = left.text_area("Last reading", key="server_text_after", height=160, max_chars=MAX_PASTED)
    before = right.text_area("First reading", key="server_text_before", height=160, max_chars=MAX_PASTED)
    if not after.strip():
        return None
    # a text area drops the end of the last line, without which a text counts as cut off
    texts = [None if not text.strip() else (text + "\n").encode(errors="replace") for text in (after, before)]
    assert texts[0] is not None
    return Reading((texts[0], "pasted text"), None if texts[1] is None else (texts[1], "first pasted text"))


def _connect() -> Reading | None:
    address = st.text_input(
        "Address",
        "http://127.0.0.1:8000/metrics",
        key="server_address",
        help="Of this machine; others have to be named in SEQUOIA_METRICS_HOSTS when the app is started.",
    )
    left, right = st.columns(2)
    for place, name, label in ((left, "first", "Read first"), (right, "last", "Read last")):
        if place.button(label, key=f"server_read_{name}", icon=":material/download:", width="stretch"):
            try:
                data = read_metrics(address, allowed=allowed_hosts())
            except ValueError as error:
                st.error(escaped(str(error)), icon=":material/error:")
            else:
                put("server_readings", {**get("server_readings", {}), name: data})
    readings = get("server_readings", {})
    if "first" in readings and "last" not in readings:
        st.caption(":material/hourglass: First reading kept. Let the server answer requests, then read it again.")
    if "last" not in readings:
        return None
    first = (readings["first"], "first reading") if "first" in readings else None
    return Reading((readings["last"], "last reading"), first)


class MissingFacts(NamedTuple):
    """Facts that files do not hold, and their reader may know."""

    engine: str
    model: str | None
    new_tokens: int | None
    method: str | None
    rates: str | None


def ask_missing() -> MissingFacts:
    """Ask for the facts that the files may lack."""
    with st.expander("What the files do not say", icon=":material/tune:", key="server_untold"):
        columns = st.columns(5)
        engine = columns[0].selectbox("Server", ("auto", *ENGINES), key="server_engine", help="Which one wrote them.")
        model = columns[1].text_input(
            "Model",
            key="server_model",
            max_chars=400,
            help="Where the server has several, or drafters.",
        )
        tokens = columns[2].number_input(
            "New tokens per answer",
            0,
            10**9,
            0,
            key="server_new_tokens",
            help="Where records by step do not tell: steps run a little past the end. 0 is unknown.",
        )
        method = columns[3].selectbox(
            "Draft by",
            ("what the counts suggest", *METHODS),
            key="server_method",
            help="A model, an EAGLE-3 head, the target's MTP layers, a DFlash head, or n-grams, which cost no draft "
            "passes and are assumed where few steps have a draft.",
        )
        rates = columns[4].selectbox(
            "Rates are",
            ("as they look", *RATES),
            key="server_rates",
            help="Rates by position alone, or published ones: survival is of all drafts, conditional is given the "
            "position before.",
        )
    chosen = (each if each in known else None for each, known in ((method, METHODS), (rates, RATES)))
    return MissingFacts(engine, model.strip() or None, int(tokens) or None, *chosen)


@st.cache_resource(max_entries=4, show_spinner="Reading…")
def counts(reading: Reading, engine: str, model: str | None, rates: str | None = None) -> ServerCounts:
    """Return what was counted."""
    before, _ = reading.before or (None, "")
    after, name = reading.after
    return read_counts(after, name, before, engine=engine, model=model, rates=rates, vectors=False)


def earlier(reading: Reading, engine: str, model: str | None) -> ServerCounts | None:
    """Return the other period given, or what was counted before the first reading; None where nothing was drafted."""
    if reading.earlier is not None:
        return counts(Reading(reading.earlier, None), engine, model)
    if reading.before is None:
        return None
    try:
        found = counts(Reading(reading.before, None), engine, model)
    except ValueError:  # no counters yet
        return None
    return found if found.drafts else None


@st.cache_resource(max_entries=4, show_spinner="Replaying…")
def chains(
    _counts: ServerCounts, reading: Reading, engine: str, model: str | None, rates: str | None, new_tokens: int | None
) -> ChainAcceptance:
    """Return what chains yield by the counts; the other arguments tell them apart."""
    return chain_acceptance(steady(_counts), new_tokens=new_tokens)
