"""The figure of tokens per step against tree size, expected and measured. k = points of a curve."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.charts import style
from ui.charts.style import BLUE, BROWN, GREY, SERIES, log2_ticks
from ui.charts.style import figure as new_figure

MEASURED = {  # kind of tree -> (its curve, which lends the colour, or what it is called, and its symbol)
    "static": ("best tree", "circle"),
    "chains": ("k chains", "square"),
    "specexec": ("SpecExec", "triangle-up"),
    "specinfer": ("SpecInfer, k × 8", "triangle-down"),
}
DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot", "2px,6px")
TOLD = "n = %{x}<br>%{y:.2f} tokens per step"
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
    shade = "rgba(47, 132, 196, 0.22)"
    traces: list[object] = [None if band is None else style.band(*band, "95% interval", fillcolor=shade)]
    colours: dict[str, str] = {}
    for i, (name, (sizes, tokens)) in enumerate(curves.items()):
        colours[name.partition(",")[0]] = colour = (*SERIES, BROWN)[i % 7]
        traces.append(
            style.line(
                sizes, tokens, name, colour, width=3 if i == 0 else 2, dash=DASHES[i % 7], hover=f"{name}<br>{TOLD}"
            )
        )
    traces.append(None if bound is None else _bound(*bound, next(iter(curves))))
    for place, (kind, (name, symbol)) in enumerate(MEASURED.items()):
        if own := [point for point in points if point["kind"] == kind]:
            shift = APART ** (place - (len(MEASURED) - 1) / 2)
            traces.append(_points(own, f"{name}, measured", symbol, colours.get(name, GREY), shift))
    if here is not None:
        at = [here[0]], [here[1]]
        traces.append(style.points(*at, "this tree", BLUE, size=13, symbol="diamond", hover=f"this tree<br>{TOLD}"))
    highest = max(float(tokens.max()) for _, tokens in curves.values())
    # farther off, a guide would only flatten the curves
    near = {text: at for text, at in (limits or {}).items() if np.isfinite(at) and at < 2.0 * highest}
    across = {"xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1, "dash": "dot"}}
    look = {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return new_figure(
        *traces,
        x="tree size n (log scale)",
        y="tokens per step",
        height=480,
        xaxis=log2_ticks(max(int(sizes[-1]) for sizes, _ in curves.values())),
        yaxis={"rangemode": "tozero"},
        shapes=[across | {"y0": at, "y1": at} for at in near.values()],
        annotations=[
            look | {"y": at, "text": f"{text} {at:.2f}", "font": {"color": GREY, "size": 11}}
            for text, at in near.items()
        ],
    )


def _bound(b: float, curve: tuple[np.ndarray, np.ndarray], below: str) -> go.Scatter:
    told = f"by this vector the {below}, of n = %{{x}}<br>yields at least %{{y:.2f}} tokens per step"
    steps = {"color": GREY, "width": 2, "dash": "dot", "shape": "hv"}
    return style.line(*curve, f"theorem's lower bound, b = {b:.2f}", GREY, hover=told, line=steps)


def _points(rows: Sequence[Mapping[str, Any]], name: str, symbol: str, colour: str, shift: float) -> go.Scatter:
    told = ["" if row["predicted"] is None else f", predicted {row['predicted']:.2f}" for row in rows]
    tokens, low, high = ([row[part] for row in rows] for part in ("tokens_per_step", "low", "high"))
    return style.points(
        [row["size"] * shift for row in rows],
        tokens,
        name,
        colour,
        symbol=symbol,
        error_y=style.bars(tokens, low, high),
        customdata=[[row["size"], words, row["steps"]] for row, words in zip(rows, told, strict=True)],
        hover=f"{name}<br>n = %{{customdata[0]}}<br>%{{y:.2f}} tokens per step%{{customdata[1]}}"
        "<br>%{customdata[2]} steps",
    )
