"""A server's results: survival by position, speed by K and batch size, and the best settings to copy."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.acceptance.matrix_files import matrix_bytes
from sequoia_extras.servers.chain_acceptance import ChainAcceptance
from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.flags import flags_by_batch
from sequoia_extras.servers.plan import MIN_GAIN, BatchPlan, ServerPlan, describe_batch, no_plan_sentence
from ui import controls
from ui.cards import Card, cards, number
from ui.charts.style import BLUE, FAINT, GREY, RUST, SERIES, error_bars, estimate_traces, line_trace, new_figure
from ui.markdown import escaped
from ui.phrases import between, count, in_parentheses, interval
from ui.session import session


def draw_unplanned(counts: ServerCounts, reason: str) -> None:
    """Draw the tokens per step and the reason why nothing is planned."""
    if counts.tokens_per_step is not None:
        cards(
            Card(
                "Tokens per step",
                f"{counts.tokens_per_step:.2f}",
                "vs 1.00 without",
                help=f"At the current setting, according to {counts.source} from {escaped(counts.engine)}.",
            )
        )
    st.warning(escaped(no_plan_sentence(reason)), icon=":material/block:")
    for note in counts.notes:
        st.caption(f":material/info: {escaped(note)}")


def draw_key_figures(chains: ChainAcceptance) -> None:
    """Draw the cards for the current tokens per step and the guess accuracy."""
    longest = chains.longest
    now = chains.tokens(longest)
    basis = "Published rates, number of drafts unknown"
    if not chains.counts.published and chains.counts.drafts is not None:
        basis = f"Of {count(chains.counts.drafts, 'draft')}"
    tokens = number(now.value)
    present = f"K = {longest}, vs 1.00 without" if chains.drafted_share == 1 else "in steps with a draft"
    guesses = "of checked guesses"
    if chains.fitted is not None:
        tokens = number(chains.counts.tokens_per_step)
        present = "now, vs 1.00 without"
        guesses = "fitted to the totals"
    cards(
        Card("Tokens per step", tokens, present, help=f"{basis}. {interval(now.low, now.high, none='No interval')}."),
        Card(
            "Guessed right",
            f"{chains.guess_accuracy:.1%}",
            guesses,
            help="Accepted ÷ (accepted + rejected), with at most one rejection per draft: the closest figure to p₁, "
            "which is measured at every position. Acceptance at the first position is lower, because drafts begin more "
            "often in hard text.",
        ),
    )


def draw_survival(place: DeltaGenerator, chains: ChainAcceptance, *, is_example: bool) -> None:
    """Draw survival by position alongside the selected or measured vector, and explain the difference."""
    vector = session.acceptance()
    compared = is_example != session.has_chosen_acceptance()  # the default vector belongs only to the example's server
    place.subheader("Survival by position")
    place.plotly_chart(
        survival_figure(chains, first=float(vector.probs[0]) if compared else None),
        key="server_survival",
        alt="Fraction of drafts accepted up to each position: "
        + ", ".join(f"{share:.2f}" for share in chains.survival[:8]),
    )
    basis = "95% intervals over " + ("requests" if chains.by_request else "drafts, assumed to be independent")
    if chains.counts.published:
        basis = "Published rates, without an interval"
    if chains.fitted is not None:
        basis = "One rate, fitted to the totals; the intervals cover rates that rise or fall by position"
    if not compared:
        hint = "" if is_example else " A vector that you select or measure on the draft page is also shown here."
        place.caption(f"{basis}.{hint}")
        return
    place.caption(
        f"{basis}. The dashed line is {escaped(session.acceptance_source())}, p₁ = {vector.probs[0]:.2f}: "
        "measured at every position of a text. Drafts begin more often where the text is hard, so a server's survival "
        "is lower at the first position and higher later; models, prompts and temperatures may also differ."
    )


def draw_speeds(place: DeltaGenerator, plan: ServerPlan, present: int | None) -> None:
    """Plot speed against K for every batch size."""
    place.subheader("Speed by K")
    place.plotly_chart(
        speed_figure(plan.batches, current=present),
        key="server_speed",
        alt="Speed by draft length: "
        + ", ".join(f"{describe_batch(each.batch)} best at K = {each.best}" for each in plan.batches),
    )
    bands = "cover these costs and the uncertainty" if plan.ranged else "show only the uncertainty"
    place.caption(f"Costs: {escaped(plan.costs.source)}. The bands {bands} of acceptance.")


def draw_settings(plan: ServerPlan, chains: ChainAcceptance, *, method: str, drafter: str) -> None:
    """Draw a table row per batch size, the possible gains, and the settings to copy."""
    if not plan.costs.assumed:
        rows = [_range_row(each) if plan.ranged else _row(each) for each in plan.batches]
        st.dataframe(rows, key="server_table")
    for each in plan.batches:
        if each.better_draft is not None and each.better_draft >= MIN_GAIN:
            st.caption(
                f":material/trending_up: With half as many rejections, {describe_batch(each.batch)}: "
                f"{each.better_draft:.2f}× the speed."
            )
    st.caption(
        "A server's counts cover only rank 1, so they do not show what a tree would gain. A vector measured here does."
    )
    left, right = st.columns(2)
    controls.page_link(
        left, "draft", "Would lookup in earlier text help? Replay a log", ":material/replay:", draft_section="No draft"
    )
    controls.page_link(right, "tree", "What a tree yields with the current vector", ":material/account_tree:")
    st.subheader("Settings to copy")
    st.caption("Replace the names in angle brackets. Your other options stay as they are.")
    for name, text in flags_by_batch(chains.counts.engine, plan.best, method=method, drafter=drafter).items():
        st.markdown(f"**{escaped(name)}**")
        st.code(text, language="bash", wrap_lines=True)


def _row(plan: BatchPlan) -> dict[str, str]:
    speed = plan.speedup[plan.best]
    rate = plan.tokens_per_sec[plan.best]
    return {
        "at once": f"{plan.batch}",
        "best K": f"{plan.best}" if plan.best else "off",
        "95%": between(plan.best_low, plan.best_high, "{}"),
        "within 2%": ", ".join(map(str, plan.flat)),
        "tokens per second": f"{rate.value:,.0f}",
        "speedup": f"{speed.value:.2f}×{in_parentheses(speed.low, speed.high, unit='×')}",
    }


def _range_row(plan: BatchPlan) -> dict[str, str]:
    return {
        "at once": f"{plan.batch}",
        "best K": plan.best_range,
        "set K": f"{plan.best}" if plan.best else "off",
        "share of the best speed": f"at least {plan.shares[plan.best]:.0%}",
        "speedup": plan.speed_range(plan.best),
    }


def draw_save_button(chains: ChainAcceptance) -> None:
    """Draw a button for downloading the counts as an acceptance file."""
    controls.download_button(
        "Save the acceptance by depth",
        matrix_bytes(chains.to_matrix()),
        "server-acceptance.json",
        key="server_download",
        help="Rank 1 by depth with its counts, for this page and the commands server-plan, tree and table.",
    )


DASHES = ("solid", "dash", "dot", "dashdot")


def survival_figure(chains: ChainAcceptance, *, first: float | None) -> go.Figure:
    """Draw survival by position, with 95% intervals, and the survival expected from the current vector's p1."""
    position = np.arange(1, chains.longest + 1)
    bars = go.Bar(
        x=position,
        y=chains.survival,
        error_y=error_bars(chains.survival, chains.low, chains.high, color=GREY),
        name=f"the server, K = {chains.longest}",
        marker={"color": BLUE},
        hovertemplate="position %{x}: %{y:.3f} survive<extra></extra>",
    )
    traces: list[object] = [bars]
    if first is not None:
        name = "p₁ of the current vector, to the power of the position"
        expected = first ** position.astype(float)
        hover = "position %{x}: %{y:.3f}"
        traces.append(line_trace(position, expected, name, RUST, dash="dash", hover=hover, mode="lines+markers"))
    return new_figure(
        *traces,
        x="position in the draft",
        y="share of drafts accepted so far",
        xaxis={"tick0": 1, "dtick": max(1, chains.longest // 8)},
        yaxis={"range": [0, 1]},
    )


def speed_figure(plans: Sequence[BatchPlan], *, current: int | None) -> go.Figure:
    """Draw speed relative to K = 0 by K, with bands, for each batch size; diamonds mark the best K."""
    traces: list[go.Scatter] = []
    for index, plan in enumerate(plans):
        name = describe_batch(plan.batch)
        traces += estimate_traces(
            dict(enumerate(plan.speedup)),
            plan.best,
            name,
            SERIES[index % len(SERIES)],
            dash=DASHES[index % len(DASHES)],
            hover=f"{name}, K = %{{x}}<br>%{{y:.1f}}× (%{{customdata}})",
            customdata=[plan.speed_range(k) for k in range(len(plan.speedup))],
        )
    figure = new_figure(
        *traces,
        x="drafted tokens K (0: no speculation; diamond: best)",
        y="speedup over no speculation",
        xaxis={"tick0": 0, "dtick": 1},
    )
    guide = {"color": FAINT, "dash": "dot"}
    figure.add_hline(y=1, line=guide)
    if current is not None:
        figure.add_vline(x=current, line=guide, annotation_text="now", annotation_position="top")
    return figure
