"""Figures of acceptance vectors. B = ranks."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.bootstrap import interval
from sequoia_core.acceptance.matrix import AcceptanceMatrix
from ui.charts.style import (
    SERIES,
    error_bars,
    heat_map,
    line_trace,
    log2_ticks,
    marker_trace,
    new_figure,
)
from ui.markdown import for_chart
from ui.phrases import between

HEIGHT = 320  # pixels; fits the first screen, below metrics and controls
LEGEND_ROW = 19  # pixels
MAX_LABEL = 36  # characters of a name in the legend
SHOWN_RANKS = 8  # ranks drawn separately; in most vectors, the others add up to a few percent


def _height(vectors: Mapping[str, AcceptanceVector]) -> int:
    """Return a figure's height in pixels, with one row of the legend for each vector."""
    return HEIGHT + LEGEND_ROW * (len(vectors) - 1)


def _shown(probs: np.ndarray) -> np.ndarray:
    """Return the first `SHOWN_RANKS` ranks, followed by the sum of the others, along the last axis."""
    return np.concatenate([probs[..., :SHOWN_RANKS], probs[..., SHOWN_RANKS:].sum(-1, keepdims=True)], -1)


def acceptance_figure(vectors: Mapping[str, AcceptanceVector]) -> go.Figure:
    """Draw p_k for the first `SHOWN_RANKS` ranks and the sum of the others, with 95% intervals if known.

    The first vector, which is the current one, has a thicker line.
    """
    longest = max(len(vector) for vector in vectors.values())
    traces = []
    for i, (name, vector) in enumerate(vectors.items()):
        name = for_chart(name, MAX_LABEL)
        color = SERIES[i % len(SERIES)]
        probs = _shown(vector.probs)[: len(vector)]
        rank = np.arange(1, len(probs) + 1)
        bounds = vector.interval()
        spread = None
        if bounds is not None:
            # The sum of the other ranks has no interval.
            low, high = (np.append(bound[:SHOWN_RANKS], probs[SHOWN_RANKS:])[: len(probs)] for bound in bounds)
            spread = error_bars(probs, low, high, color=color)
        trace = line_trace(
            rank,
            probs,
            name,
            color,
            width=1.5 if i else 3,
            hover=f"{name}<br>rank %{{customdata}}: %{{y:.4f}}",
            customdata=[*map(str, rank[:SHOWN_RANKS]), f"{SHOWN_RANKS + 1} to {len(vector)} together"][: len(probs)],
            error_y=spread,
            mode="lines+markers",
            marker={"size": 7 if i else 9, "symbol": i},
            zorder=-i,
        )
        traces.append(trace)
    ticks = [*map(str, range(1, SHOWN_RANKS + 1)), "the rest"][:longest]
    return new_figure(
        *traces,
        x="rank k, in the order drafted",
        y="acceptance probability p<sub>k</sub>",
        height=_height(vectors),
        xaxis={"tickvals": list(range(1, len(ticks) + 1)), "ticktext": ticks},
        yaxis={"rangemode": "tozero"},
    )


def depth_figure(matrix: AcceptanceMatrix) -> go.Figure:
    """Draw a heat map of acceptance by depth and rank with 95% intervals; ranks beyond `SHOWN_RANKS` are summed."""
    probs = _shown(matrix.probs)
    resampled = matrix.resampled()
    intervals = np.full(probs.shape, "", dtype=object)
    if resampled is not None:
        low, high = interval(_shown(resampled))
        for cell in np.ndindex(probs.shape):
            intervals[cell] = f" ({between(low[cell], high[cell], '{:.1%}')})"
    return new_figure(
        heat_map(
            [*map(str, range(1, probs.shape[1])), "rest"],
            [*map(str, range(1, len(probs))), f"{len(probs)}, deeper"],
            np.sqrt(probs),  # makes the colours of small probabilities easier to distinguish
            text=[[f"{p:.0%}" if p >= 0.0995 else f"{p:.1%}" for p in row] for row in probs],
            texttemplate="%{text}",
            customdata=np.dstack([probs, intervals]),
            hovertemplate="depth %{y}, rank %{x}: %{customdata[0]:.2%}%{customdata[1]}<extra></extra>",
        ),
        x="rank k, in the order drafted",
        y="depth",
        height=HEIGHT,
        xaxis={"type": "category", "showgrid": False},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )


def rejection_figure(vectors: Mapping[str, AcceptanceVector]) -> go.Figure:
    """Draw the probability that the first k children are all rejected, and its fitted power law, on log-log axes."""
    traces: list[go.Scatter] = []
    for i, (name, vector) in enumerate(vectors.items()):
        name = for_chart(name)
        color = SERIES[i % len(SERIES)]
        rejected = 1.0 - np.cumsum(vector.probs)
        rank = np.arange(1, len(rejected) + 1)
        shown = np.where(rejected > 1e-9, rejected, np.nan)
        hover = f"{name}<br>first %{{x}} all rejected: %{{y:.4f}}"
        traces.append(marker_trace(rank, shown, name, color, size=7, symbol=i, hover=hover))
        try:
            fit = vector.fit_power_law()
        except ValueError:
            continue  # too few ranks for a fit; only the points are drawn
        law = f"k<sup>−{fit.b:.2f}</sup> (R² {fit.r_squared:.2f})"
        traces.append(line_trace(rank, fit.scale * rank ** (-float(fit.b)), law, color, width=1.5, dash="dash"))
    # By default, Plotly labels minor ticks with only "2" and "5".
    ticks = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 3, 5, 7)]
    figure = new_figure(
        *traces,
        x="children tried k (log scale)",
        y="P(all k rejected) (log scale)",
        height=_height(vectors),
        xaxis=log2_ticks(max(map(len, vectors.values()))),
        yaxis={"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]},
    )
    if not any(np.isfinite(trace.y).any() for trace in traces):
        figure.update_yaxes(showticklabels=False)
        where = " in the one measured prompt" if any(vector.has_one_prompt for vector in vectors.values()) else ""
        figure.add_annotation(
            text=f"nothing was rejected{where}", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper"
        )
    return figure
