"""The figure of expected tokens against tree size. k = points of a curve."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BROWN, GREY, SERIES, log2_ticks
from ui.charts.style import figure as new_figure


def growth_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    here: tuple[int, float] | None = None,
    limits: Mapping[str, float] | None = None,
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> go.Figure:
    """Draw expected tokens per step against tree size.

    Args:
        curves: name -> (sizes int [k], expected tokens float [k]); the first is drawn strongest.
        here: (n, F) of the tree on show, marked.
        limits: text -> expected tokens that some kind of tree cannot exceed, drawn as guides where they are in reach.
        band: (sizes int [k], low, high float [k]), the interval of the first curve.
    """
    traces: list[object] = [None if band is None else _band(*band)]
    for i, (name, (sizes, tokens)) in enumerate(curves.items()):
        traces.append(
            go.Scatter(
                x=sizes,
                y=tokens,
                mode="lines",
                name=name,
                line={
                    "color": (*SERIES, BROWN)[i % 7],
                    "width": 3 if i == 0 else 2,
                    "dash": ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot", "2px,6px")[i % 7],
                },
                hovertemplate=f"{name}<br>n = %{{x}}<br>%{{y:.2f}} tokens per step<extra></extra>",
            )
        )
    traces.append(None if here is None else _mark(*here))
    figure = new_figure(
        *traces,
        x="tree size n (log scale)",
        y="expected tokens per step",
        height=440,
        xaxis=log2_ticks(max(int(sizes[-1]) for sizes, _ in curves.values())),
        yaxis={"rangemode": "tozero"},
    )
    highest = max(float(tokens.max()) for _, tokens in curves.values())
    for text, limit in (limits or {}).items():
        if np.isfinite(limit) and limit < 2.0 * highest:  # farther off, a guide would only flatten the curves
            figure.add_hline(
                y=limit,
                line={"color": GREY, "width": 1, "dash": "dot"},
                annotation={"text": f"{text} {limit:.2f}", "font": {"color": GREY, "size": 11}},
                annotation_position="top left",
            )
    return figure


def _band(sizes: np.ndarray, low: np.ndarray, high: np.ndarray) -> go.Scatter:
    return go.Scatter(
        x=np.concatenate([sizes, sizes[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor="rgba(47, 132, 196, 0.22)",
        line={"width": 0},
        hoverinfo="skip",
        name="95% interval",
    )


def _mark(size: int, tokens: float) -> go.Scatter:
    return go.Scatter(
        x=[size],
        y=[tokens],
        mode="markers",
        name="this tree",
        marker={"color": SERIES[0], "size": 13, "symbol": "diamond", "line": {"width": 1, "color": GREY}},
        hovertemplate="this tree<br>n = %{x}<br>%{y:.2f} tokens per step<extra></extra>",
    )
