"""The figure of dynamic trees against the static one, over temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ui.charts.style import GREY, SERIES
from ui.charts.style import figure as new_figure


def dynamic_lanes_figure(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw tokens per step ÷ the static tree's over temperature, with 95 % intervals and the line of a tie.

    Args:
        rows: of one budget, each with `tree`, `temperature` and `over_static` of value, low and high.
    """
    traces = []
    for colour, name in zip(SERIES, dict.fromkeys(row["tree"] for row in rows), strict=False):
        own = [row for row in rows if row["tree"] == name]
        values = [row["over_static"] for row in own]
        spread = None
        if all(value["low"] is not None for value in values):
            spread = {
                "array": [value["high"] - value["value"] for value in values],
                "arrayminus": [value["value"] - value["low"] for value in values],
                "thickness": 1,
            }
        traces.append(
            go.Scatter(
                x=[row["temperature"] for row in own],
                y=[value["value"] for value in values],
                name=name,
                mode="lines+markers",
                line={"color": colour, "width": 2},
                error_y=spread,
                hovertemplate=f"{name}, T = %{{x}}<br>%{{y:.2f}}× the static tree<extra></extra>",
            )  # fmt: skip
        )
    figure = new_figure(*traces, x="temperature", y="tokens per step ÷ static tree's")
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    return figure
