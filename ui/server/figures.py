"""What a server's counts say: survival by position, speed over k and B, the setting to use, lines to copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.design.matrix_files import matrix_bytes
from sequoia_core.servers.flags import flags_by_batch
from sequoia_core.servers.plan import at_once
from ui import charts, controls
from ui.cards import Card, cards
from ui.markdown import escaped
from ui.phrases import beside, between, count, interval
from ui.session import session

if TYPE_CHECKING:
    from sequoia_core.servers.chain_acceptance import ChainAcceptance
    from sequoia_core.servers.counts import ServerCounts
    from sequoia_core.servers.plan import BatchPlan, ServerPlan


def unplanned(counts: ServerCounts, reason: str) -> None:
    """Say what little is known, and why nothing is planned from it."""
    if counts.tokens_per_step is not None:
        cards(
            Card(
                "Tokens per step",
                f"{counts.tokens_per_step:.2f}",
                "vs 1.00 without",
                help=f"At the present setting, by {counts.source} of {escaped(counts.engine)}.",
            )
        )
    st.warning(f"Nothing is planned: {escaped(reason)}.", icon=":material/block:")
    if counts.positions and counts.drafts:
        shares = ", ".join(f"{count / counts.drafts:.3f}" for count in counts.positions)
        st.caption(f"Accepted by position, of {counts.drafts:,} drafts: {shares}.")
    for note in counts.notes:
        st.caption(f":material/info: {escaped(note)}")


def key_figures(chains: ChainAcceptance, plan: ServerPlan | None) -> None:
    """Draw the cards: what the server reaches now, what it could, and what compares with a vector's p1."""
    first = None if plan is None else plan.batches[0]
    now, longest = chains.tokens(chains.longest), chains.longest
    share = None if first is None else first.share_of_best(longest)
    sure = interval(now.low, now.high, none="No interval")
    of = (
        "Published, of how many drafts is not told"
        if chains.counts.shares or chains.counts.drafts is None
        else f"Of {count(chains.counts.drafts, 'draft')}"
    )
    cards(
        Card("Tokens per step", f"{now.value:.2f}", f"K = {longest}, vs 1.00 without", help=f"{of}. {sure}."),
        Card(
            "Guessed right",
            f"{chains.guessed:.1%}",
            "of tokens guessed at",
            help="Accepted ÷ (accepted + refused once per draft): the nearest to a p1 that is measured at every "
            "position. The first position alone is lower, since drafts begin more often where text is hard.",
        ),
        Card(
            "Best K" if first is None else f"Best K, {count(first.batch, 'request')}",
            "–" if first is None else f"{first.best}" if first.best else "off",
            "no costs yet" if first is None else _range(first),
            help="Most tokens per second. In resamples of the measurement 95% of the best K lie in that range.",
        ),
        Card(
            "Speed at it",
            "–" if first is None else f"{first.speedup[first.best].value:.2f}×",
            "no costs yet"
            if first is None
            else "vs 1.00× without"
            if share is None
            else f"K = {longest} now: {share:.0%} of it",
            help="Tokens per second with that K ÷ without speculation, predicted.",
        ),
    )


def _range(plan: BatchPlan) -> str:
    if plan.speedup[plan.best].low is None:
        return "no interval known"
    if plan.best_low == plan.best_high:
        return "in all resamples"
    return interval(plan.best_low, plan.best_high, "{}")


def survival(place: DeltaGenerator, chains: ChainAcceptance, *, is_example: bool) -> None:
    """Draw survival by position beside a vector that the reader brought or measured, and say why they differ."""
    vector = session.acceptance()
    compared = is_example != session.has_own_acceptance()  # a default of the app is of no server but the example's
    name = "p₁ of the vector in use, to the power of the position"
    place.subheader("Survival by position")
    place.plotly_chart(
        charts.survival_figure(chains, beside={name: float(vector.probs[0])} if compared else {}),
        width="stretch",
        key="server_survival",
        alt="Share of drafts accepted up to each position: "
        + ", ".join(f"{share:.2f}" for share in chains.survival[:8]),
    )
    over = "95% over requests" if chains.by_request else "95% over drafts, taken as independent"
    over = "Published, without an interval" if chains.counts.shares else over
    if not compared:
        beside = "" if is_example else " A vector that you choose or measure on the draft page is drawn beside it."
        place.caption(f"{over}.{beside}")
        return
    place.caption(
        f"{over}. The dashed line is {escaped(session.acceptance_source())}, p₁ = {vector.probs[0]:.2f}: "
        "measured at every position of a text. A draft begins more often where text is hard, so a server's first "
        "position survives less and later ones more; other models, prompts and temperatures differ too."
    )


def speeds(place: DeltaGenerator, plan: ServerPlan | None, present: int) -> None:
    """Draw speed over k at every batch size."""
    place.subheader("Speed over K")
    if plan is None:
        place.info("No costs yet: say below what a step costs.", icon=":material/speed:")
        return
    place.plotly_chart(
        charts.speed_figure(plan.batches, present=present),
        width="stretch",
        key="server_speed",
        alt="Speed over the draft length: "
        + ", ".join(f"{at_once(each.batch)} best at K = {each.best}" for each in plan.batches),
    )
    place.caption(f"Costs: {escaped(plan.source)}. Bands are of the acceptance alone.")


def settings(plan: ServerPlan, chains: ChainAcceptance, *, method: str, drafter: str) -> None:
    """Draw a row for each batch size, what else might help, and what to copy."""
    unit = "requests" if chains.by_request else "drafts"
    st.dataframe([_row(each, unit) for each in plan.batches], hide_index=True, width="stretch", key="server_table")
    for each in plan.batches:
        if each.helps:
            gains = ", ".join(f"{what} {gain:.2f}×" for what, gain in each.helps.items())
            st.caption(f":material/trending_up: Over the best for {at_once(each.batch)}: {gains}.")
    st.caption(
        "A server's counts do not tell what a tree would add: they are of rank 1 alone. A vector measured here does."
    )
    left, right = st.columns(2)
    controls.page_link(
        left, "draft", "Would text already seen help? Replay a log", ":material/replay:", draft_section="No draft"
    )
    controls.page_link(right, "tree", "What a tree yields by the vector in use", ":material/account_tree:")
    st.subheader("Settings to copy")
    st.caption("Names in angle brackets are yours. Other options of yours stay as they are.")
    flags = flags_by_batch(chains.counts.engine, plan.best, method=method, drafter=drafter)
    for name, text in flags.items():
        st.markdown(f"**{escaped(name)}**")
        st.code(text, language="bash", wrap_lines=True)


def _row(plan: BatchPlan, unit: str) -> dict[str, str]:
    speed, rate = plan.speedup[plan.best], plan.tokens_per_sec[plan.best]
    return {
        "at once": f"{plan.batch}",
        "best K": f"{plan.best}" if plan.best else "off",
        "95%": between(plan.best_low, plan.best_high, "{}"),
        "within 2%": ", ".join(map(str, plan.flat)),
        "tokens per second": f"{rate.value:,.0f}",
        "speed over K = 0": f"{speed.value:.2f}×{beside(speed.low, speed.high, unit='×')}",
        f"more {unit} to settle it": "unknown" if plan.more is None else f"{plan.more:,}" if plan.more else "none",
    }


def saving(chains: ChainAcceptance) -> None:
    """Offer what was counted as an acceptance file."""
    controls.download(
        "Save the acceptance by depth",
        matrix_bytes(chains.to_matrix()),
        "server-acceptance.json",
        key="server_download",
        help="Rank 1 by depth, with its counts: this page and server-plan read it again, tree and table take it.",
    )
