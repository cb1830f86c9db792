"""Where the models' weights live: the choice, what it means, and what they take when streamed or run by llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.profile import PLACES
from sequoia_core.files.gguf_header import is_gguf, read_gguf_header
from sequoia_core.models.device import available_bytes
from sequoia_core.models.gguf.bindings import load as llama_library
from sequoia_core.models.pair_spec import PairSpec
from ui.markdown import escaped
from ui.session import machine, predictions

if TYPE_CHECKING:
    from sequoia_core.models.offload.needs import OffloadNeeds

CACHED_TOKENS = 2048
MEANING = (
    "On disk, every pass reads the target's layers anew: it may be larger than memory, and a tree of dozens of tokens "
    "is checked in about the time of one."
)


def control(spec: PairSpec) -> str | None:
    """Draw the choice inside a form -> the tier, as for `load_pair`."""
    tiers = {place.capitalize(): tier for tier, place in PLACES.items() if tier != "host" or machine.has_gpu()}
    chosen = st.selectbox(
        "Where the target's weights live",
        list(tiers),
        index=list(tiers.values()).index(spec.offload) if spec.offload in tiers.values() else 0,
        key="sidebar_weights",
        help="The draft always stays in memory. In memory is fastest where the target fits.",
    )
    st.caption(MEANING)
    return tiers[chosen]


def problem(spec: PairSpec) -> str | None:
    """Say why a pair whose target streams cannot be loaded, with the numbers; None where it can or may be."""
    if not _can_tell(spec):
        return None
    try:
        _needs(spec, predictions.dtype_of(spec))
    except (ValueError, OSError) as error:
        return str(error)
    return None


def gguf_problem(path: Path) -> str | None:
    """Say why a GGUF file cannot be loaded here, as far as its head and the memory tell; None where nothing is seen."""
    try:
        header = read_gguf_header(path)
        llama_library()
    except (ValueError, OSError) as error:
        return str(error)
    free = available_bytes()
    if free is not None and not machine.has_gpu() and header.file_bytes > free:
        return f"the file has {header.file_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of memory are free."
    return None


def _gguf_line(names: list[str]) -> None:
    weights = cache = 0
    for name in names:
        try:
            header = read_gguf_header(Path(name).expanduser())
        except (ValueError, OSError) as error:
            st.caption(f":red[:material/memory: {escaped(Path(name).name)} cannot be read]", help=escaped(str(error)))
            return
        context = header.of_model("context_length")
        weights += header.file_bytes
        cache += header.cache_bytes(min(CACHED_TOKENS, context) if isinstance(context, int) else CACHED_TOKENS) or 0
    st.caption(
        f":material/memory: llama.cpp: takes {(weights + cache) / 1e6:,.0f} MB{_free()}",
        help=f"Predicted from the heads of the GGUF files, in MB: weights {weights / 1e6:,.0f}; keys and values in 16 "
        f"bits for {CACHED_TOKENS:,} tokens {cache / 1e6:,.0f}.",
    )


def line(spec: PairSpec) -> None:
    """Say what the pair in use takes while its target streams or where llama.cpp runs it; else nothing."""
    if files := [str(name) for name in spec.named if is_gguf(name)]:
        _gguf_line(files)
    if spec.offload is None:
        return
    place = f":material/hard_drive: Target {PLACES[spec.offload]}"
    if not _can_tell(spec):
        st.caption(f"{place}. What it takes is known once it is downloaded.")
        return
    try:
        needs = _needs(spec, predictions.dtype_of(spec))
    except (ValueError, OSError) as error:
        st.caption(f":red[{place}: cannot be loaded]", help=escaped(str(error)))
        return
    parts = {"resident": needs.resident, "ring": needs.ring, "cache": needs.cache, "scratch": needs.scratch}
    parts |= {} if spec.is_alone else {"draft": needs.beside}
    listed = ", ".join(f"{part} {size / 1e6:,.0f}" for part, size in parts.items())
    st.caption(f"{place}: takes {needs.memory / 1e6:,.0f} MB{_free()} ({listed})", help=explanation(needs))


def explanation(needs: OffloadNeeds) -> str:
    """Say what the memory is taken for, in a few sentences."""
    found = (
        "Predicted in MB from the file headers. Resident: embedding, head, norms. Ring: layers that are being read. "
        "Cache and scratch: for a text of 2,048 tokens, or the model's context, and a tree of 1,024."
    )
    if needs.loading:
        found += f" While it loads, {needs.loading / 1e6:,.0f} MB are taken in place of these four."
    if needs.copy:
        found += f" A packed copy of the layers, {needs.copy / 1e6:,.0f} MB, is written to the cache folder once."
    if needs.host:
        found += f" The layers take {needs.host / 1e6:,.0f} MB of the host's memory."
    return found


def _free() -> str:
    free = None if machine.has_gpu() else available_bytes()
    return "" if free is None else f" of {free / 1e6:,.0f} MB free"


def _can_tell(spec: PairSpec) -> bool:
    """Whether a pair streams and its files are local: of a hub id nothing is known before it is downloaded."""
    return spec.offload is not None and all(Path(name).expanduser().is_dir() for name in spec.named)


@st.cache_resource(show_spinner="Reading what the target takes…", max_entries=8)
def _needs(spec: PairSpec, dtype: str) -> OffloadNeeds:
    from sequoia_core.models.loading import streaming_needs  # heavy: torch and transformers

    return streaming_needs(replace(spec, dtype=dtype))
