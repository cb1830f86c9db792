"""Figures of acceptance vectors. B = ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from sequoia_core.design.bootstrap import interval
from ui.charts.style import BLUE, GREY, RUST, SCALE, SERIES, bars, line, log2_ticks, points
from ui.charts.style import figure as new_figure
from ui.markdown import for_chart
from ui.phrases import between

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector
    from sequoia_core.design.acceptance_matrix import AcceptanceMatrix

HEIGHT = 320  # the first screen holds it below figures and controls
RANKS = 8  # shown apart: of most vectors the others add up to a few percent


def acceptance_figure(vectors: Mapping[str, AcceptanceVector], *, log: bool = False) -> go.Figure:
    """Draw p_k of the first `RANKS` ranks and the sum of the rest; 95% intervals of ranks if trials are known.

    One vector is drawn as bars, several as points.
    """
    longest = max(len(vector) for vector in vectors.values())
    traces: list[object] = []
    for i, (name, vector) in enumerate(vectors.items()):
        name = for_chart(name)
        probs = np.append(vector.probs[:RANKS], vector.probs[RANKS:].sum())[: len(vector)]
        rank, color = np.arange(1, len(probs) + 1), SERIES[i % len(SERIES)]
        interval = vector.interval()
        spread = None
        if interval is not None:
            low, high = (np.append(np.asarray(bound)[:RANKS], probs[RANKS:])[: len(probs)] for bound in interval)
            spread = bars(probs, low, high, color=GREY)
        shown = np.where(probs > 0, probs, np.nan) if log else probs  # a log axis has no place for 0
        hover = f"{name}<br>rank %{{customdata}}: %{{y:.4f}}<extra></extra>"
        ranks = [*map(str, rank[:RANKS]), f"{RANKS + 1} to {len(vector)} together"][: len(probs)]
        common = {"x": rank, "y": shown, "error_y": spread, "name": name, "customdata": ranks, "hovertemplate": hover}
        if len(vectors) == 1:
            traces.append(go.Bar(marker={"color": color}, **common))
        else:
            marks = {"mode": "lines+markers", "marker": {"color": color, "size": 7, "symbol": i}}
            traces.append(go.Scatter(line={"color": color, "width": 1.5}, **common, **marks))
    figure = new_figure(
        *traces, x="rank k, in the order drafted", y="probability of acceptance p<sub>k</sub>", height=HEIGHT
    )
    ticks = [*map(str, range(1, RANKS + 1)), "the rest"][:longest]
    figure.update_xaxes(tickvals=list(range(1, len(ticks) + 1)), ticktext=ticks)
    figure.update_yaxes(rangemode="tozero")
    if log:
        figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    return figure


def depth_figure(matrix: AcceptanceMatrix) -> go.Figure:
    """Draw a head's chances by depth and rank as a map, with 95% intervals on hover; ranks beyond `RANKS` together."""

    def shown(probs: np.ndarray) -> np.ndarray:
        return np.concatenate([probs[..., :RANKS], probs[..., RANKS:].sum(-1, keepdims=True)], -1)

    probs, again = shown(matrix.probs), matrix.resampled()
    depths = [*map(str, range(1, len(probs))), f"{len(probs)}, deeper"]
    ranks = [*map(str, range(1, probs.shape[1])), "rest"]
    sure = np.full(probs.shape, "", dtype=object)
    if again is not None:
        low, high = interval(shown(again))
        for place in np.ndindex(probs.shape):
            sure[place] = f" ({between(low[place], high[place], '{:.1%}')})"
    return new_figure(
        go.Heatmap(
            x=ranks,
            y=depths,
            z=np.sqrt(probs),  # so that small ones differ in colour too
            text=[[f"{p:.0%}" if p >= 0.0995 else f"{p:.1%}" for p in row] for row in probs],
            texttemplate="%{text}",
            customdata=np.dstack([probs, sure]),
            hovertemplate="depth %{y}, rank %{x}: %{customdata[0]:.2%}%{customdata[1]}<extra></extra>",
            colorscale=SCALE,
            showscale=False,
            xgap=2,
            ygap=2,
        ),
        x="rank k, in the order drafted",
        y="depth",
        height=HEIGHT,
        xaxis={"type": "category", "showgrid": False},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )


def depth_worth_figure(by_depth: Sequence[float], alike: Sequence[float]) -> go.Figure:
    """Draw the tokens that each depth adds to a chain, [L], and that it would add if all depths were as the first."""
    depths = list(range(1, len(by_depth) + 1))
    told = "depth %{x}: %{y:.3f} tokens per step"
    return new_figure(
        go.Bar(x=depths, y=list(by_depth), name="as measured", marker={"color": BLUE}, hovertemplate=told),
        points(depths, list(alike), "if all were as the first", RUST, symbol="diamond", hover=told),
        x="depth",
        y="tokens per step added to a chain",
        height=HEIGHT,
        xaxis={"tickvals": depths},
        yaxis={"rangemode": "tozero"},
    )


def rejection_figure(vectors: Mapping[str, AcceptanceVector]) -> go.Figure:
    """Draw on log-log axes the probability that the first k children are all rejected, and the fitted power law."""
    traces: list[go.Scatter] = []
    for i, (name, vector) in enumerate(vectors.items()):
        name = for_chart(name)
        rejected = 1.0 - np.cumsum(vector.probs)
        rank = np.arange(1, len(rejected) + 1)
        color = SERIES[i % len(SERIES)]
        told = f"{name}<br>first %{{x}} all rejected: %{{y:.4f}}"
        traces.append(
            points(rank, np.where(rejected > 1e-9, rejected, np.nan), name, color, size=7, symbol=i, hover=told)
        )
        try:
            fit = vector.fit_power_law()
        except ValueError:
            continue  # too few ranks, or nothing left to reject: the points are still worth showing
        law = f"k<sup>−{fit.b:.2f}</sup> (R² {fit.r_squared:.2f})"
        traces.append(line(rank, fit.scale * rank ** (-float(fit.b)), law, color, width=1.5, dash="dash"))
    figure = new_figure(*traces, x="children tried k (log scale)", y="P(all k rejected) (log scale)", height=HEIGHT)
    figure.update_xaxes(**log2_ticks(max(len(vector.probs) for vector in vectors.values())))
    # plotly's own labels say only "2" and "5"
    ticks = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 3, 5, 7)]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    if not any(np.isfinite(trace.y).any() for trace in traces):
        figure.update_yaxes(showticklabels=False)
        where = " on the one prompt measured" if any(vector.of_one_prompt for vector in vectors.values()) else ""
        figure.add_annotation(
            text=f"nothing was rejected{where}", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper"
        )
    return figure
