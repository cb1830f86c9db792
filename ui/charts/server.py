"""Figures of a server's speculative decoding: survival by position, and speed over the draft length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from sequoia_core.servers.plan import at_once
from ui.charts.style import BLUE, FAINT, GREY, RUST, SERIES
from ui.charts.style import figure as new_figure
from ui.markdown import for_chart

if TYPE_CHECKING:
    from sequoia_core.servers.chain_acceptance import ChainAcceptance
    from sequoia_core.servers.plan import BatchPlan

DASHES = ("solid", "dash", "dot", "dashdot")


def survival_figure(chains: ChainAcceptance, *, beside: Mapping[str, float]) -> go.Figure:
    """Draw survival by position with its 95% intervals, beside the chains that the p1 of vectors, by name, expects."""
    place = np.arange(1, chains.longest + 1)
    bars = {
        "type": "data", "array": chains.high - chains.survival, "arrayminus": chains.survival - chains.low,
        "color": GREY, "thickness": 1.2, "width": 3,
    }  # fmt: skip
    traces: list[object] = [
        go.Bar(
            x=place, y=chains.survival, error_y=bars, name=f"the server, K = {chains.longest}",
            marker={"color": BLUE}, hovertemplate="position %{x}: %{y:.3f} survive<extra></extra>",
        )
    ]  # fmt: skip
    for name, first in beside.items():
        traces.append(
            go.Scatter(
                x=place, y=first ** place.astype(float), mode="lines+markers", name=for_chart(name),
                line={"color": RUST, "width": 2, "dash": "dash"},
                hovertemplate="position %{x}: %{y:.3f}<extra></extra>",
            )
        )  # fmt: skip
    return new_figure(
        *traces,
        x="position in the draft",
        y="share of drafts accepted so far",
        xaxis={"tick0": 1, "dtick": max(1, chains.longest // 8)},
        yaxis={"range": [0, 1]},
    )


def speed_figure(plans: Sequence[BatchPlan], *, present: int) -> go.Figure:
    """Draw speed over k for each batch size, as a ratio over k = 0, with 95% bands; diamonds mark the best k."""
    traces: list[object] = []
    for number, plan in enumerate(plans):
        colour = SERIES[number % len(SERIES)]
        ks = list(range(len(plan.speedup)))
        if all(each.low is not None for each in plan.speedup):
            band = [each.high for each in plan.speedup] + [each.low for each in reversed(plan.speedup)]
            traces.append(
                go.Scatter(
                    x=[*ks, *reversed(ks)], y=band, mode="lines", fill="toself", fillcolor=colour, opacity=0.15,
                    line={"width": 0}, hoverinfo="skip", showlegend=False,
                )
            )  # fmt: skip
        traces.append(
            go.Scatter(
                x=ks, y=[each.value for each in plan.speedup], mode="lines+markers", name=at_once(plan.batch),
                customdata=[each.value for each in plan.tokens_per_sec],
                line={"color": colour, "width": 3, "dash": DASHES[number % len(DASHES)]},
                marker={
                    "symbol": ["diamond" if k == plan.best else "circle" for k in ks],
                    "size": [14 if k == plan.best else 6 for k in ks],
                },
                hovertemplate=f"{at_once(plan.batch)}, K = %{{x}}<br>%{{y:.2f}}× · %{{customdata:,.0f}} tokens/s"
                "<extra></extra>",
            )
        )  # fmt: skip
    figure = new_figure(
        *traces,
        x="K, drafted tokens (0: none; diamond: best)",
        y="tokens per second ÷ without speculation",
        xaxis={"tick0": 0, "dtick": 1},
    )
    figure.add_hline(y=1, line={"color": FAINT, "dash": "dot"})
    figure.add_vline(x=present, line={"color": FAINT, "dash": "dot"}, annotation_text="now", annotation_position="top")
    return figure
