"""What steps of a server cost: its own speed at some settings, llama-bench's times, or a profile."""

import math
from typing import Any

import streamlit as st

from sequoia_core.design.bench_profile import profile_from_files
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.servers.chain_acceptance import ChainAcceptance
from sequoia_core.servers.costs import ServerCosts, TimedSetting, costs_of, timed_setting
from ui import controls
from ui.markdown import escaped, safe_name
from ui.session import session, shipped

WAYS = SPEED, FILE, PROFILE = ("Its own speed", "llama-bench or a profile", "Profile in use")
EXAMPLE = "The example's pair"
BATCHES = (1, 2, 4, 8, 16, 32, 64)


def section(chains: ChainAcceptance, *, drafts_free: bool, is_example: bool) -> ServerCosts | None:
    """Draw where costs come from -> them; None before there are any."""
    ways = (EXAMPLE, *WAYS) if is_example else WAYS
    way = controls.source_picker("Costs", ways, key="server_costs_example" if is_example else "server_costs")
    try:
        if way == PROFILE:
            return _of_profile(session.profile(), session.profile_source(), drafts_free)
        if way == EXAMPLE:
            own = _of_example()
            return _of_profile(own, "" if own is None else shipped.profile_origin(own), drafts_free)
        return _of_settings(chains, drafts_free) if way == SPEED else _of_files(drafts_free)
    except ValueError as error:
        st.error(escaped(str(error)), icon=":material/error:")
        return None


def _of_example() -> HardwareProfile | None:
    """Return a shipped profile of the demo pair, whose server wrote the example; None where none is shipped."""
    every = (shipped.profile(name) for name in shipped.files("profiles"))
    pair = PairSpec().names
    return next((one for one in every if (one.meta.get("target"), one.meta.get("draft")) == pair), None)


def _of_profile(profile: HardwareProfile | None, origin: str, drafts_free: bool) -> ServerCosts | None:
    if profile is None:
        st.info("There is no such profile: choose one on the machine page.", icon=":material/memory:")
        return None
    names = [escaped(str(profile.meta.get(role, "?"))) for role in ("target", "draft")]
    st.caption(
        f":material/memory: {escaped(origin)}; of {' and '.join(names)} in this app's own engine, not in the server."
    )
    return costs_of(profile, drafts_free=drafts_free)


def _of_files(drafts_free: bool) -> ServerCosts | None:
    files = st.file_uploader(
        "Times of passes",
        accept_multiple_files=True,
        key="server_bench",
        help="llama-bench -p 1,2,3,4,5,7,9,16 -n 0 of target and draft (-o json, jsonl or md), or a profile of "
        "this app, measured or modelled.",
    )
    if not files:
        st.info("Without costs no draft length can be called the best.", icon=":material/info:")
        return None
    read: HardwareProfile = profile_from_files(
        [(file.getvalue(), safe_name(file.name)) for file in files], needs_draft=not drafts_free
    )
    return costs_of(read, drafts_free=drafts_free)


def _of_settings(chains: ChainAcceptance, drafts_free: bool) -> ServerCosts | None:
    st.caption(
        "Run the same requests on a server without the speculative option (K = 0) and at two settings or more, and "
        "write down the tokens per second of all together. K = 0 stands alone: turning speculation on has a cost too."
    )
    rows: dict[str, Any] = {"K": [0, None, None], "tokens per second": [None] * 3, "at once": [1, 1, 1]}
    table = st.data_editor(
        rows,
        key="server_timed",
        num_rows="dynamic",
        hide_index=True,
        column_config={
            "K": st.column_config.NumberColumn("K", min_value=0, max_value=chains.longest, step=1),
            "tokens per second": st.column_config.NumberColumn("tokens per second", min_value=0.0),
            "at once": st.column_config.NumberColumn("at once", min_value=1, max_value=65_536, step=1, default=1),
        },
    )
    settings: list[TimedSetting] = []
    for k, rate, batch in zip(table["K"], table["tokens per second"], table["at once"], strict=True):
        if all(value is not None and math.isfinite(value) for value in (k, rate, batch)):
            settings.append(timed_setting(int(k), float(rate), chains, batch=int(batch)))
    if len({setting.k for setting in settings if setting.k}) < 2:
        st.info("Fill in K = 0 and two settings with K > 0: then the best is named here.", icon=":material/info:")
        return None
    return costs_of(None, settings, drafts_free=drafts_free)


def batches() -> list[int]:
    """Draw the choice of batch sizes."""
    chosen = st.pills(
        "Requests side by side",
        BATCHES,
        selection_mode="multi",
        default=[1, 4, 16],
        key="server_batches",
        help="B: a step then checks B · (K + 1) tokens at once. Acceptance does not depend on it, costs do.",
    )
    return sorted(chosen) or [1]
