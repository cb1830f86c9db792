"""The figure of what lookup trees yield on a replayed log over the size of the trees."""

from collections.abc import Mapping

import plotly.graph_objects as go

from sequoia_core.design.bootstrap import Estimate
from ui.charts.style import BLUE, RUST, log2_ticks
from ui.charts.style import figure as new_figure

BANDS = ("rgba(47, 132, 196, 0.2)", "rgba(212, 98, 42, 0.2)")


def replay_figure(lanes: Mapping[str, Mapping[int, Estimate]], *, best: Mapping[str, int]) -> go.Figure:
    """Draw tokens per step over n with 95% bands for two lanes at most, and mark the best n of each."""
    traces: list[object] = []
    for (name, found), colour, band, dash in zip(lanes.items(), (BLUE, RUST), BANDS, ("solid", "dash"), strict=False):
        sizes, known = list(found), {n: each for n, each in found.items() if each.low is not None}
        if known:
            traces.append(
                go.Scatter(
                    x=[*known, *reversed(known)],
                    y=[*(each.high for each in known.values()), *(each.low for each in reversed(known.values()))],
                    mode="lines", fill="toself", fillcolor=band, line={"width": 0}, hoverinfo="skip", showlegend=False,
                )
            )  # fmt: skip
        marks = ["diamond" if n == best[name] else "circle" for n in sizes]
        traces.append(
            go.Scatter(
                x=sizes, y=[each.value for each in found.values()], mode="lines+markers", name=name,
                line={"color": colour, "width": 3, "dash": dash},
                marker={"symbol": marks, "size": [14 if n == best[name] else 6 for n in sizes]},
                hovertemplate=f"{name}<br>n = %{{x}}<br>%{{y:.2f}} tokens per step<extra></extra>",
            )
        )  # fmt: skip
    largest = max(n for found in lanes.values() for n in found)
    return new_figure(
        *traces,
        x="n, nodes at most (log scale; diamond: best)",
        y="tokens per step",
        xaxis=log2_ticks(largest),
        yaxis={"rangemode": "tozero"},
    )
