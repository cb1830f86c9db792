"""Pass costs of one or two profiles: t(n) with its spread and bound, and draft passes by width."""

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from sequoia_core import HardwareProfile
from sequoia_core.planning.break_even import idle_arithmetic
from sequoia_core.planning.plan import BestShape
from sequoia_core.planning.step_time import reading_ends
from ui.charts.style import (
    BLUE,
    FAINT,
    GREY,
    PLUM,
    RUST,
    band_trace,
    line_trace,
    log2_ticks,
    marker_trace,
    new_figure,
)
from ui.machine.sentences import format_time, idle_sentence, reading_sentence
from ui.markdown import escaped

QUARTILE_COLOUR = "rgba(212, 98, 42, 0.20)"  # translucent RUST


def costs_section(profile: HardwareProfile, best: BestShape) -> None:
    """Draw the pass costs."""
    st.subheader("Cost of a target pass")
    idle = idle_arithmetic(profile)
    ends = reading_ends(profile)
    streams = profile.streaming is not None
    st.plotly_chart(
        verify_time_figure(profile, here=best.size, idle=None if streams else idle.tokens, reading_ends=ends),
        key="hardware_times",
        alt=f"Relative time of a target pass by number of tokens, 1 to {profile.max_size}",
    )
    st.caption(reading_sentence(profile, ends) if streams else idle_sentence(idle, profile.max_size))
    if profile.modelled:
        software = profile.meta.get("software")
        source = software.get("source") if isinstance(software, dict) else None
        known = f"The device's data sheet, and {str(source)[:300]}" if source else "From the device's data sheet"
        st.caption(f":material/functions: Dashed: modelled, not measured. {escaped(known)}.")
    with st.expander("Cost of a draft pass", icon=":material/timer:", key="hardware_draft_cost"):
        st.plotly_chart(
            draft_cost_figure(profile),
            key="hardware_draft",
            alt="Cost of a draft pass by number of tokens",
        )
        st.caption(
            "Each tree level is drafted in one pass over its nodes that have children, so wide levels cost more than c."
            if len(profile.draft_widths) > 1
            else "Only one-token draft passes were timed; wider levels are assumed to cost the same."
        )
        if profile.deeper_draft_share < 1:
            st.caption(f"Passes after the first of a step take {profile.deeper_draft_share:.0%} of this time.")


def verify_time_figure(
    profile: HardwareProfile, *, here: int, idle: int | None = None, reading_ends: int | None = None
) -> go.Figure:
    """Draw t(n), the time to verify n tokens divided by the time to verify one.

    Measured times are drawn as points with a band between their quartiles, modelled ones as a dashed line.

    Args:
        here: tree size to mark.
        idle: number of tokens to mark, up to which a pass costs little more than a one-token pass.
        reading_ends: number of tokens to mark, up to which a pass waits for streamed weights.
    """
    unit = profile.smooth_verify_sec[0]
    times = profile.verify_sec / unit
    top = 1.15 * float(times.max())
    sizes = np.unique(np.geomspace(1, max(profile.max_size, 2), 120).round().astype(int))
    traces = []
    if profile.quartiles is not None:
        low, high = (part / unit for part in profile.quartiles)
        band = band_trace(profile.sizes, low, high, "middle half of the samples", fillcolor=QUARTILE_COLOUR)
        traces.append(band)
    source, dash = ("modelled", "dash") if profile.modelled else ("smoothed", "solid")
    hover = "n = %{x}<br>t(n) = %{y:.2f}"
    traces.append(line_trace(sizes, profile.t(sizes), f"{source} t(n)", BLUE, width=2.5, dash=dash, hover=hover))
    if not profile.modelled:
        hover = "n = %{x}<br>%{customdata:.2f} ms = %{y:.2f} × one token"
        ms = 1000 * profile.verify_sec
        traces.append(marker_trace(profile.sizes, times, "measured, median", RUST, hover=hover, customdata=ms))
    traces.append(line_trace(sizes, sizes, "t(n) = n: no parallel gain", GREY, width=1, dash="dot"))
    if idle is not None:
        name = f"idle arithmetic ends at n = {idle}"
        traces.append(line_trace([idle, idle], [0.0, top], name, FAINT, width=1.5, dash="dash"))
    yaxis: dict = {"range": [0, top]}
    y = "t(n), in one-token passes"
    if profile.streaming is not None:
        sec = profile.streaming.pass_sec
        level = sec / unit
        name = f"weights arrive in {format_time(sec)}"
        traces.append(line_trace([1, profile.max_size], [level, level], name, PLUM, dash="dash"))
        if reading_ends is not None and reading_ends != profile.max_size:
            name = f"beyond n = {reading_ends}, computing takes longer"
            traces.append(marker_trace([reading_ends], [level], name, PLUM, size=13, symbol="x"))
        # With streamed weights, times stay flat and then rise steeply; only a log scale shows where the rise begins.
        limits = np.log10([0.5, max(top, 2.0)]).tolist()
        yaxis = {"type": "log", "range": limits, "tickvals": [0.5, 1, 2, 5, 10, 20, 50, 100]}
        y += " (log scale)"
    time = float(profile.t(here))
    traces.append(marker_trace([here], [time], f"best shape, t({here}) = {time:.2f}", BLUE, size=13, symbol="diamond"))
    return new_figure(
        *traces,
        x="tokens in a target pass, n (log scale)",
        y=y,
        height=460,
        xaxis=log2_ticks(profile.max_size),
        yaxis=yaxis,
    )


def draft_cost_figure(profile: HardwareProfile) -> go.Figure:
    """Draw c(w), the time of a draft pass over w tokens divided by that of a one-token target pass."""
    widths = profile.draft_widths if len(profile.draft_widths) else np.array([1])
    trace = line_trace(
        widths,
        profile.draft_cost(widths),
        "c(w)",
        RUST,
        width=2.5,
        dash="dash" if profile.modelled else "solid",
        hover="%{x} tokens<br>c = %{y:.3f}",
        mode="lines+markers",
    )
    return new_figure(
        trace,
        x="tokens in a draft pass, w (log scale)",
        y="c(w), in target passes",
        height=260,
        xaxis=log2_ticks(int(widths[-1])),
        yaxis={"rangemode": "tozero"},
    )
