"""The cost of a server's steps: assumed, modelled for a device and two models, or measured."""

import math
from typing import Any

import streamlit as st

from sequoia_core.files.extras import has
from sequoia_core.planning.profile import profile_from_files
from sequoia_extras.servers.chain_acceptance import ChainAcceptance
from sequoia_extras.servers.costs import (
    DRAFT_COST,
    ServerCosts,
    TimedSetting,
    assumed_costs,
    build_costs,
    timed_setting,
)
from sequoia_extras.servers.plan import ServerPlan, plan_server
from ui import controls
from ui.markdown import escaped, safe_name

ASSUMED = "Assumed cost of a token"
MODELLED = "Device and models"
MEASURED = "Measured times"
BATCH_CHOICES = (1, 2, 4, 8, 16, 32, 64)


def plan_section(chains: ChainAcceptance, *, drafts_free: bool) -> ServerPlan:
    """Draw the choice of the costs and return the plan; an assumed cost is used until other costs are complete."""
    sources = (ASSUMED, MODELLED, MEASURED) if has("hardware_models") else (ASSUMED, MEASURED)
    way = controls.source_picker("Costs", sources, key="server_costs")
    if way == ASSUMED:
        return plan_server(chains, _assumed())
    try:
        batches = _choose_batches()
        costs = _modelled(chains, drafts_free) if way == MODELLED else _measured(chains, drafts_free)
        if costs is not None:
            return plan_server(chains, costs, batches)
    except ValueError as error:
        st.error(escaped(str(error)), icon=":material/error:")
    return plan_server(chains, assumed_costs())


def timed_rates(plan: ServerPlan, chains: ChainAcceptance) -> list[tuple[int, float, int, int | None]]:
    """Return the entered K, tokens per second and batch size of each setting."""
    settings = () if plan.costs.assumed else plan.costs.settings
    return [(k, batch * chains.tokens(k).value / sec, batch, None) for k, sec, batch in settings]


def _assumed() -> ServerCosts:
    low, high = st.slider(
        "A draft token costs, in % of a target pass",
        1,
        50,
        (round(100 * DRAFT_COST[0]), round(100 * DRAFT_COST[1])),
        key="server_draft_cost",
        help="The time for drafting and checking one token. With few concurrent requests, a draft of a tenth of the "
        "target's size costs about 10%; a draft head costs less. Checking costs more with many concurrent requests.",
    )
    return assumed_costs(low / 100, high / 100)


def _modelled(chains: ChainAcceptance, drafts_free: bool) -> ServerCosts | None:
    from ui.plan.modelled import chosen_profile

    with st.container(horizontal=True):
        profile = chosen_profile("server_model")
    return build_costs(profile, drafts_free=drafts_free, engine=chains.counts.engine)


def _measured(chains: ChainAcceptance, drafts_free: bool) -> ServerCosts | None:
    st.caption(
        "Run the same requests on a server without the speculative option (K = 0) and with at least two values of K, "
        "and enter the total tokens per second over all requests. Speculation itself has a fixed cost, so "
        "K = 0 does not count as one of the two."
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
    files = st.file_uploader(
        "Or times of passes",
        accept_multiple_files=True,
        key="server_bench",
        help="The output of llama-bench -p 1,2,3,4,5,7,9,16 -n 0 for target and draft (-o json, jsonl or md), or a "
        "profile of this app, of the server's models on the server's machine.",
    )
    if len({setting.k for setting in settings if setting.k}) < 2:
        settings = []
    if not settings and not files:
        st.info("Until there are times, the assumed cost is used.", icon=":material/info:")
        return None
    contents = [(file.getvalue(), safe_name(file.name)) for file in files]
    needs_draft = not (drafts_free or settings)
    profile = profile_from_files(contents, needs_draft=needs_draft) if contents else None
    return build_costs(profile, settings, drafts_free=drafts_free, engine=chains.counts.engine)


def _choose_batches() -> list[int]:
    """Draw the selector for batch sizes and return the selected sizes in ascending order."""
    chosen = st.pills(
        "Concurrent requests",
        BATCH_CHOICES,
        selection_mode="multi",
        default=[1, 4, 16],
        key="server_batches",
        help="Batch size B: a step verifies B · (K + 1) tokens at once. Costs depend on B, acceptance does not.",
    )
    return sorted(chosen) or [1]
