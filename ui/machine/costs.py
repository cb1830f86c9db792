"""What passes cost: t(n) with its spread and bound, and draft passes by width, of one profile or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.break_even import idle_arithmetic
from sequoia_core.design.step_time import reading_ends
from ui import charts
from ui.machine.sentences import idle_sentence, reading_sentence
from ui.markdown import escaped
from ui.session import session, shipped

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile
    from sequoia_core.design.planning import BestShape


def _made_of(profile: HardwareProfile) -> str:
    """Say which shares of a device's peaks a modelled profile assumes, and where they come from."""
    software = profile.meta.get("software")
    source = software.get("source") if isinstance(software, dict) else None
    return f"The device's data sheet, and {str(source)[:300]}." if source else "From the device's data sheet."


def section(profile: HardwareProfile, best: BestShape) -> None:
    """Draw the costs that decide, with a second profile beside them if one is picked."""
    st.subheader("Cost of a target pass")
    others = [name for name in shipped.files("profiles") if name != session.profile_name()]
    other = st.selectbox(
        "Compare with", others, index=None, key="hardware_other", placeholder="No second profile",
        help="Draws another shipped profile beside the one in use.",
    )  # fmt: skip
    second = None if other is None else shipped.profile(other)
    idle, ends = idle_arithmetic(profile), reading_ends(profile)
    streams = profile.streaming is not None
    st.plotly_chart(
        charts.verify_time_figure(
            profile, here=best.size, idle=None if streams else idle.tokens, reading_ends=ends, other=second
        ),
        width="stretch",
        key="hardware_times",
        alt=f"Relative time of a target pass against its tokens, 1 to {profile.max_size}",
    )
    st.caption(reading_sentence(profile, ends) if streams else idle_sentence(idle, profile.max_size))
    if profile.modelled:
        st.caption(f":material/functions: Dashed: worked out, not measured. {escaped(_made_of(profile))}")
    st.plotly_chart(
        charts.draft_cost_figure(profile, other=second),
        width="stretch",
        key="hardware_draft",
        alt="Cost of a draft pass against its tokens",
    )
    st.caption(
        "A level of the tree is drafted in one pass over its nodes that have children: wide levels cost more than c."
        if len(profile.draft_widths) > 1
        else "Only draft passes over one token were timed; wider levels are priced alike."
    )
    if profile.max_size < 3:
        return
    st.plotly_chart(
        charts.marginal_cost_figure(profile),
        width="stretch",
        key="hardware_marginal",
        alt="What one more node costs in the target's pass and in a draft pass",
    )
    st.caption(
        "A dynamic tree keeps a node where its chance to be accepted is above these costs × tokens per pass reached. "
        f"A further level costs a whole draft pass, c = {profile.c:.3f}, besides."
        + (" While weights stream in, half of all drafting is counted: part of it hides." if profile.streaming else "")
    )
