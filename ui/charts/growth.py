"""The figure of tokens per step against tree size, expected and measured. k = points of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BROWN, GREY, SERIES, log2_ticks
from ui.charts.style import figure as new_figure

MEASURED = {  # kind of tree -> (its curve, which lends the colour, or what it is called, and its symbol)
    "static": ("best tree", "circle"),
    "chains": ("k chains", "square"),
    "specexec": ("SpecExec", "triangle-up"),
    "specinfer": ("SpecInfer, k × 8", "triangle-down"),
}
APART = 1.03  # factor that sets kinds of one size apart, so that no interval hides another


def growth_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    here: tuple[int, float] | None = None,
    limits: Mapping[str, float] | None = None,
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    bound: tuple[float, tuple[np.ndarray, np.ndarray]] | None = None,
    points: Sequence[Mapping[str, Any]] = (),
) -> go.Figure:
    """Draw expected tokens per step against tree size, and what was measured.

    Args:
        curves: name -> (sizes int [k], expected tokens float [k]); the first is drawn strongest.
        here: (n, F) of the tree on show, marked.
        limits: text -> expected tokens that some kind of tree cannot exceed, drawn as guides where they are in reach.
        band: (sizes int [k], low, high float [k]), the interval of the first curve.
        bound: b of a power law and the curve that follows from it, a lower bound of the first curve.
        points: rows of `GrowthPoint`, measured.
    """
    traces: list[object] = [None if band is None else _band(*band)]
    colours: dict[str, str] = {}
    for i, (name, (sizes, tokens)) in enumerate(curves.items()):
        colours[name.partition(",")[0]] = colour = (*SERIES, BROWN)[i % 7]
        traces.append(
            go.Scatter(
                x=sizes,
                y=tokens,
                mode="lines",
                name=name,
                line={
                    "color": colour,
                    "width": 3 if i == 0 else 2,
                    "dash": ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot", "2px,6px")[i % 7],
                },
                hovertemplate=f"{name}<br>n = %{{x}}<br>%{{y:.2f}} tokens per step<extra></extra>",
            )
        )
    traces.append(None if bound is None else _bound(*bound, next(iter(curves))))
    for place, (kind, (name, symbol)) in enumerate(MEASURED.items()):
        if own := [point for point in points if point["kind"] == kind]:
            shift = APART ** (place - (len(MEASURED) - 1) / 2)
            traces.append(_points(own, f"{name}, measured", symbol, colours.get(name, GREY), shift))
    traces.append(None if here is None else _mark(*here))
    figure = new_figure(
        *traces,
        x="tree size n (log scale)",
        y="tokens per step",
        height=480,
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


def _bound(b: float, curve: tuple[np.ndarray, np.ndarray], below: str) -> go.Scatter:
    return go.Scatter(
        x=curve[0],
        y=curve[1],
        mode="lines",
        name=f"theorem's lower bound, b = {b:.2f}",
        line={"color": GREY, "width": 2, "dash": "dot", "shape": "hv"},
        hovertemplate=f"by this vector the {below}, of n = %{{x}}<br>yields at least %{{y:.2f}} tokens per step"
        "<extra></extra>",
    )


def _points(rows: Sequence[Mapping[str, Any]], name: str, symbol: str, colour: str, shift: float) -> go.Scatter:
    spread = None
    if all(row["low"] is not None for row in rows):
        spread = {
            "array": [row["high"] - row["tokens_per_step"] for row in rows],
            "arrayminus": [row["tokens_per_step"] - row["low"] for row in rows],
            "thickness": 1.4,
            "width": 4,
        }
    told = ["" if row["predicted"] is None else f", predicted {row['predicted']:.2f}" for row in rows]
    return go.Scatter(
        x=[row["size"] * shift for row in rows],
        y=[row["tokens_per_step"] for row in rows],
        error_y=spread,
        mode="markers",
        name=name,
        marker={"color": colour, "size": 9, "symbol": symbol},
        customdata=[[row["size"], words, row["steps"]] for row, words in zip(rows, told, strict=True)],
        hovertemplate=f"{name}<br>n = %{{customdata[0]}}<br>%{{y:.2f}} tokens per step%{{customdata[1]}}"
        "<br>%{customdata[2]} steps<extra></extra>",
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
