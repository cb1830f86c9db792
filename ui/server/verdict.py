"""The doctor's verdict on a server's drafting."""

import plotly.graph_objects as go
import streamlit as st

from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.diagnosis import Diagnosis
from sequoia_extras.servers.request_spread import by_prompt_length, spread
from sequoia_extras.servers.rules import HEALTHY, LIMIT, UNKNOWN
from ui.charts.style import BLUE, line_trace, new_figure
from ui.markdown import escaped

VERDICT_ICONS = {HEALTHY: ":material/check_circle:", UNKNOWN: ":material/help:", LIMIT: ":material/straighten:"}


def draw_verdict(diagnosis: Diagnosis, counts: ServerCounts) -> None:
    """Draw the verdict, its evidence, the next check, and the gain from a fix; collapsed if healthy."""
    first, *others = diagnosis.findings
    title = f"**{escaped(first.title)}:** {escaped(first.says)}"
    icon = VERDICT_ICONS.get(first.verdict, ":material/warning:")
    key = f"server_verdict_{first.verdict.replace(' ', '_')}"
    with st.expander(title, icon=icon, expanded=first.verdict != HEALTHY, key=key):
        if first.evidence:
            st.markdown("\n".join(f"- {escaped(str(evidence))}" for evidence in first.evidence))
        st.markdown(f"**Check next:** {escaped(first.check)}.")
        if diagnosis.gain:
            st.markdown(escaped(diagnosis.gain))
        for finding in others:
            st.caption(f"Also **{escaped(finding.title)}**: {escaped('; '.join(map(str, finding.evidence)))}.")
        for note in diagnosis.notes:
            st.caption(escaped(note))
        if len(counts.periods) > 1:
            st.plotly_chart(periods_figure(counts), key="server_periods", alt="Tokens per step along the source")
        variation = spread(counts.totals)
        lengths = by_prompt_length(counts.totals)
        if variation is not None:
            st.caption(escaped(str(variation)))
        if lengths:
            rows = [
                {
                    "prompt tokens": f"{part.shortest:,} to {part.longest:,}",
                    "tokens per step": f"{part.tokens_per_step:.2f}",
                    "requests": part.requests,
                }
                for part in lengths
            ]
            st.dataframe(rows, key="server_lengths")
        if not counts.published:
            st.caption("The bounds are exact if drafts are independent. Each rule flags at most 2% of healthy drafts.")


def periods_figure(counts: ServerCounts) -> go.Figure:
    """Draw the tokens per step of the source's windows, requests or engines, in order."""
    line = line_trace(
        list(range(1, len(counts.periods) + 1)),
        [part.tokens_per_step for part in counts.periods],
        "tokens per step",
        BLUE,
        hover="part %{x}: %{y:.2f}, K = %{customdata}",
        mode="lines+markers",
        customdata=[len(part.positions) or "unknown" for part in counts.periods],
    )
    return new_figure(line, x="part of the source, in order", y="tokens per step", height=240)
