"""The doctor's verdict on a server: what is wrong, if anything, by what it counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.servers.request_spread import by_prompt_length, spread
from sequoia_core.servers.rules import HEALTHY, LIMIT, UNKNOWN
from ui.markdown import escaped

if TYPE_CHECKING:
    from sequoia_core.servers.counts import ServerCounts
    from sequoia_core.servers.diagnosis import Diagnosis

ICONS = {HEALTHY: ":material/check_circle:", UNKNOWN: ":material/help:", LIMIT: ":material/straighten:"}
FAULT = ":material/warning:"


def card(diagnosis: Diagnosis, counts: ServerCounts) -> None:
    """Draw the verdict with its evidence, the next check, and what fixing it would gain; folded where all is well."""
    first, *others = diagnosis.findings
    title = f"**{escaped(first.title)}:** {escaped(first.says)}"
    icon, key = ICONS.get(first.verdict, FAULT), f"server_verdict_{first.verdict.replace(' ', '_')}"
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
        over, lengths = spread(counts.totals), by_prompt_length(counts.totals)
        if over is not None:
            st.caption(escaped(str(over)))
        if lengths:
            rows = [
                {
                    "prompt tokens": f"{part.shortest:,} to {part.longest:,}",
                    "tokens per step": f"{part.tokens_per_step:.2f}",
                    "requests": part.requests,
                }
                for part in lengths
            ]
            st.dataframe(rows, hide_index=True, width="stretch", key="server_lengths")
        if not counts.shares:
            st.caption("Bounds are exact and take drafts as independent. Each rule flags at most 2% of healthy drafts.")
